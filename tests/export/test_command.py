"""`linformer export` by command: its files, rejected settings, and that a failure leaves nothing."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from transformers import AutoModelForMaskedLM, AutoTokenizer

from linformer_cli.cli import main
from linformer_kit.export import onnx_file
from linformer_kit.export.exportable import Case, load, random_inputs
from linformer_kit.files.manifest import damage
from tests.conftest import fail, fail_last_line
from tests.export.conftest import LENGTH, TEXTS, linformer, save

FILES = {"README.md", "config.json", "export.json", "manifest.json", "model.onnx"}
FILES |= {"tokenizer.json", "tokenizer_config.json"}


@pytest.mark.e2e
def test_a_folder_that_runs_without_pytorch(tmp_path, capsys):
    linformer("LinformerForMaskedLM", tmp_path / "model", num_hidden_layers=1)
    main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--benchmark"])
    printed = capsys.readouterr().out
    assert (
        "Largest difference from PyTorch over 20 shapes: " in printed
        and f"One text of {LENGTH} tokens: PyTorch" in printed
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES and damage(tmp_path / "out") is None
    results = json.loads((tmp_path / "out" / "export.json").read_text())
    agreement = results["agreement"]
    assert agreement["largest_difference"] <= agreement["tolerance"] and len(agreement["shapes"]) == 20
    assert results["max_length"] == LENGTH and [row["length"] for row in results["seconds"]] == [LENGTH]
    assert results["bytes"]["ONNX Runtime"] == (tmp_path / "out" / "model.onnx").stat().st_size
    assert {"onnx", "onnxscript", "onnxruntime", "torch"} <= set(results["versions"])
    assert {"device", "threads", "commit"} <= set(results["environment"])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LinformerForMaskedLM"] and "model_type" not in config
    assert "InferenceSession" in (tmp_path / "out" / "README.md").read_text()

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    inputs = tokenizer([*TEXTS, "w7 " * 99], padding=True, truncation=True, return_tensors="np")
    arrays = {value.name: inputs[value.name] for value in session.get_inputs()}
    arrays["attention_mask"][0, 1:3] = 0  # holes
    (logits,) = session.run(["logits"], arrays)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    expected = model(**{name: torch.from_numpy(array) for name, array in arrays.items()}).logits.detach().numpy()
    real = arrays["attention_mask"] == 1
    np.testing.assert_allclose(logits[real], expected[real], rtol=1e-4, atol=1e-4)
    assert logits.shape == (4, LENGTH, 53)


@pytest.mark.e2e
def test_int8_says_what_it_loses(exported, tmp_path, capsys, monkeypatch):
    source, run, path = exported
    monkeypatch.setattr(onnx_file, "write_onnx", lambda source, place: shutil.copy(path, place))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    options = ["--int8", "--validation_file", str(tmp_path / "texts.txt")]
    main(["export", str(path.with_name("model")), str(tmp_path / "out"), *options])
    printed = capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    results = json.loads((tmp_path / "out" / "export.json").read_text())
    sizes, quality = results["bytes"], results["quality"]
    assert sizes["ONNX Runtime int8"] == (tmp_path / "out" / "model.onnx").stat().st_size < 0.4 * sizes["ONNX Runtime"]
    assert results["int8_difference"] > results["agreement"]["tolerance"] and "seconds" not in results
    assert quality["measure"] == "cosine with float32" and quality["int8"] != quality["float32"]
    assert f"a change of {quality['int8'] - quality['float32']:+.4f}" in printed
    inputs = random_inputs(source, Case(2, 23))
    whole, rounded = run(inputs)[0], onnx_file.runner(tmp_path / "out" / "model.onnx")(inputs)[0]
    assert 0 < np.abs(whole - rounded).mean() < 0.2 * whole.std()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--validation_file", "x.txt"],
            "validation_file: expected none without int8, whose loss of accuracy it measures, got 'x.txt'",
        ),
        (["--int8", "--validation_file", "x.txt"], "validation_file: no such file or folder: x.txt"),
        (["--int8", "--validation_file", "OUT/lines.txt", "--label_column", "x"], "label_column: expected none for "),
        (["--max_eval_samples", "5"], "max_eval_samples: expected none without validation_file, got 5"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(arguments, message, tmp_path, capsys):
    linformer("LinformerModel", tmp_path / "model")
    (tmp_path / "lines.txt").write_text("good\nbad\n")
    arguments = [argument.replace("OUT", str(tmp_path)) for argument in arguments]
    assert message in fail(capsys, "export", tmp_path / "model", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


def test_models_that_are_no_encoder_or_have_no_longest_input_are_refused(tmp_path, capsys):
    sizes = {"vocab_size": 53, "n_positions": 37, "n_embd": 33, "n_layer": 1, "n_head": 3}
    save(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)), tmp_path / "gpt2")
    error = fail(capsys, "export", tmp_path / "gpt2", tmp_path / "out")
    assert "model: expected a masked language model, a classifier, " in error and "got GPT2LMHeadModel in" in error
    linformer("LinformerModel", tmp_path / "model")
    error = fail(capsys, "export", tmp_path / "model", tmp_path / "model")
    assert "out: expected a new or empty folder, got" in error


def test_without_a_library_one_line_says_which(tmp_path, capsys, monkeypatch):
    found, package = importlib.util.find_spec, "onnxscript"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    error = fail(capsys, "export", "model", tmp_path / "out")
    assert (
        "expected onnx, onnxscript, onnxruntime to be installed (pip install 'linformer-kit[export]'), got no" in error
    )


@pytest.fixture
def unwritten(tmp_path, monkeypatch):
    """PyTorch in place of an ONNX file, with other errors for longer inputs, and with a given numerical error."""
    model = load(str(linformer("LinformerForSequenceClassification", tmp_path / "model"))).exportable

    def use(error):
        def run(inputs):
            outputs = model.run(inputs)
            outputs[0][-1, -1] += error
            return outputs

        monkeypatch.setattr(onnx_file, "write_onnx", lambda source, path: path.write_bytes(b"a file"))
        monkeypatch.setattr(onnx_file, "runner", lambda path: run)

    return use


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (0.01, "model: expected the exported model within "),
        (0, "padded on the right and to name the limit, got sequence length: expected at most"),
    ],
)
@pytest.mark.e2e
def test_what_fails_a_check_leaves_nothing(error, message, unwritten, tmp_path, capsys):
    unwritten(error)
    assert message in fail_last_line(capsys, "export", tmp_path / "model", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
