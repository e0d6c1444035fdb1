"""`linformer export` by command: its files, rejected settings, and that a failure leaves nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from linformer_cli.cli import main
from linformer_kit.export import command, onnx_file
from linformer_kit.export.exportable import Case, load, random_inputs
from linformer_kit.files.manifest import damage
from tests.conftest import encoded_lengths, fail, fail_last_line, pad_always, randomise, save_bert_tokenizer
from tests.export.conftest import LENGTH, TEXTS, check_limit, linear_bert, linformer, save

PAIR = {"text": "A text.", "text_pair": "The second text of the pair."}
FILES = {"README.md", "config.json", "export.json", "manifest.json", "model.onnx"}
FILES |= {"tokenizer.json", "tokenizer_config.json"}


@pytest.mark.e2e
def test_a_folder_that_runs_without_pytorch(tmp_path, capsys):
    out, names = tmp_path / "out", {"num_hidden_layers": 1, "id2label": {0: "bad", 1: "fine", 2: "good"}}
    linformer("LinformerForSequenceClassification", tmp_path / "model", **names)
    main(["export", str(tmp_path / "model"), str(out)])
    assert "Largest difference from PyTorch over 18 shapes: " in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == FILES and damage(out) is None
    results = json.loads((out / "export.json").read_text())
    agreement = results["agreement"]
    assert agreement["largest_difference"] <= agreement["tolerance"] and len(agreement["shapes"]) == 18
    assert results["max_length"] == LENGTH
    assert results["bytes"]["ONNX Runtime"] == (out / "model.onnx").stat().st_size
    assert {"onnx", "onnxscript", "onnxruntime", "torch"} <= set(results["environment"])
    assert {"device", "threads", "commit"} <= set(results["environment"])
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LinformerForSequenceClassification"]
    assert not {"model_type", "trained_pieces"} & set(config)

    session = onnxruntime.InferenceSession(out / "model.onnx")
    texts = [*TEXTS, "w7 " * 99]
    inputs = AutoTokenizer.from_pretrained(out)(texts, padding=True, truncation=True, return_tensors="np")
    arrays = {value.name: inputs[value.name] for value in session.get_inputs()}
    arrays["attention_mask"][0, 1:3] = 0  # holes
    (logits,) = session.run(["logits"], arrays)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    expected = model(**{name: torch.from_numpy(array) for name, array in arrays.items()}).logits.detach().numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)

    best = pipeline("text-classification", model=str(tmp_path / "model"))(["A text.", "Another, longer text."])
    assert as_its_card_says(out, capsys) == f"{[each['label'] for each in best]}\n"


def as_its_card_says(folder, capsys) -> str:
    """What the code in the README.md of an exported model prints."""
    code = (folder / "README.md").read_text().split("```")[1].removeprefix("python")
    assert "tokenizers" in code and "transformers" not in code
    capsys.readouterr()
    exec(code.replace("FOLDER", str(folder)), {})
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "logits", "printed"),
    [
        (
            {"problem_type": "multi_label_classification", "id2label": {0: "a", 1: "b", 2: "c"}},
            [[0.0, -1, 2], [-1, -2, -1]],
            "['a', 'c']\n[]",
        ),
        ({"num_labels": 1}, [[0.25], [-1.0]], "[[ 0.25]\n [-1.  ]]"),
    ],
)
def test_the_code_of_a_card_prints_what_the_logits_mean(fields, logits, printed, tmp_path, capsys):
    folder = linformer("LinformerForSequenceClassification", tmp_path / "model", **fields)
    code = command._answer(load(str(folder))).replace("FOLDER", str(folder))
    exec(code, {"json": json, "outputs": [np.array(logits)]})
    assert capsys.readouterr().out == f"{printed}\n"


@pytest.mark.e2e
def test_padding_and_truncation_of_the_source_do_not_reach_the_exported_tokenizer(tmp_path, capsys):
    """Its card has a pair of texts for a classifier that was trained on pairs; a linear one, in several blocks."""
    model, out = tmp_path / "model", tmp_path / "out"
    columns = {"text": "text", "text_pair": "second", "label": "label"}
    classifier = linear_bert(num_labels=2, trained_columns=columns)
    randomise(classifier).save_pretrained(model)
    save_bert_tokenizer(model, ["text", "second", "a", "."])
    pad_always(model, 11)
    main(["export", str(model), str(out)])
    assert encoded_lengths(out, "text", "text " * 99) == [3, LENGTH]
    printed = as_its_card_says(out, capsys)
    (best,) = pipeline("text-classification", model=str(model))([PAIR])
    assert printed == f"['{best['label']}']\n"


@pytest.mark.e2e
def test_a_tokenizer_file_with_other_tokens_than_pytorch_leaves_nothing(tmp_path, capsys, monkeypatch):
    linformer("LinformerForSequenceClassification", tmp_path / "model")
    monkeypatch.setattr(command, "save_tokenizer", lambda tokenizer, place: tokenizer.save_pretrained(place))
    pad_always(tmp_path / "model", 11)
    error = fail_last_line(capsys, "export", tmp_path / "model", tmp_path / "out")
    assert (
        "whose tokenizer.json makes the same tokens without transformers, got others of 'A text: what was it?'" in error
    )
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


@pytest.mark.e2e
def test_int8_says_what_it_loses(exported, tmp_path, capsys, monkeypatch):
    source, run, path = exported
    monkeypatch.setattr(onnx_file, "write", lambda source, place: shutil.copy(path, place))
    main(["export", str(path.with_name("model")), str(tmp_path / "out"), "--dtype", "int8"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    results = json.loads((tmp_path / "out" / "export.json").read_text())
    sizes = results["bytes"]
    assert sizes["ONNX Runtime int8"] == (tmp_path / "out" / "model.onnx").stat().st_size < 0.4 * sizes["ONNX Runtime"]
    assert results["int8_difference"] > results["agreement"]["tolerance"]
    assert f"Largest difference of int8: {results['int8_difference']:.1e}" in capsys.readouterr().out
    inputs = random_inputs(source, Case(2, 23))
    whole, rounded = run(inputs)[0], onnx_file.runner(tmp_path / "out" / "model.onnx")(inputs)[0]
    assert 0 < np.abs(whole - rounded).mean() < 0.2 * whole.std()
    check_limit(source, onnx_file.runner(tmp_path / "out" / "model.onnx"))
    finish = onnx_file.finish

    def with_nan(*places):
        wrong = finish(*places)
        return lambda inputs: [
            output + (np.nan if len(output) > 1 else 0) for output in wrong(inputs)
        ]  # not in the first

    monkeypatch.setattr(onnx_file, "finish", with_nan)
    error = fail_last_line(capsys, "export", path.with_name("model"), tmp_path / "nan", "--dtype", "int8")
    assert "dtype: expected finite outputs in int8, got NaN" in error and not (tmp_path / "nan").exists()


def test_models_that_are_no_encoder_or_have_no_longest_input_are_rejected(tmp_path, capsys):
    sizes = {"vocab_size": 53, "n_positions": 37, "n_embd": 33, "n_layer": 1, "n_head": 3}
    save(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)), tmp_path / "gpt2")
    error = fail(capsys, "export", tmp_path / "gpt2", tmp_path / "out")
    assert "model: expected a masked language model, a classifier, " in error and "got GPT2LMHeadModel in" in error
    linformer("LinformerModel", tmp_path / "model")
    error = fail(capsys, "export", tmp_path / "model", tmp_path / "model")
    assert "out: expected a new or empty folder, got" in error


def test_a_number_format_that_a_file_cannot_have_is_rejected(tmp_path, capsys):
    error = fail(capsys, "export", "model", tmp_path / "out", "--dtype", "bfloat16")
    assert "dtype: expected float32 or int8 with format onnx, got bfloat16" in error


@pytest.mark.e2e
def test_a_folder_of_openvino(tmp_path, capsys, monkeypatch):
    """Of a linear encoder in several blocks, with the settings for bfloat16, and the code of its card; then in int8."""
    openvino_file = pytest.importorskip("linformer_kit.export.openvino_file")
    out = tmp_path / "out"
    names = {0: "bad", 1: "fine", 2: "good"}
    save(linear_bert(intermediate_size=2000, id2label=names), tmp_path / "model")
    main(["export", str(tmp_path / "model"), str(out), "--format", "openvino", "--dtype", "bfloat16"])
    assert "Largest difference of bfloat16: " in capsys.readouterr().out
    files = {"openvino_model.xml", "openvino_model.bin", "ov_config.json"}
    assert {path.name for path in out.iterdir()} == FILES - {"model.onnx"} | files and damage(out) is None
    assert json.loads((out / "ov_config.json").read_text())["INFERENCE_PRECISION_HINT"] == "bf16"
    results = json.loads((out / "export.json").read_text())
    sizes = [(out / f"openvino_model.{end}").stat().st_size for end in ("xml", "bin")]
    assert results["bytes"]["OpenVINO"] == sum(sizes) and "openvino" in results["environment"]
    assert results["bfloat16_difference"] > results["agreement"]["largest_difference"]
    best = pipeline("text-classification", model=str(tmp_path / "model"))(["A text.", "Another, longer text."])
    assert as_its_card_says(out, capsys) == f"{[each['label'] for each in best]}\n"
    card = (out / "README.md").read_text()
    assert "INFERENCE_NUM_THREADS" in card and "NUM_STREAMS" in card
    with pytest.raises(Exception, match=re.escape(f"model input (shape=[?,1..{LENGTH}])")):
        run = openvino_file.runner(out / "openvino_model.xml")
        run(random_inputs(load(str(tmp_path / "model")), Case(2, LENGTH + 1, "right")))

    monkeypatch.setattr(
        openvino_file, "write", lambda source, path: shutil.copytree(out, path.parent, dirs_exist_ok=True)
    )
    small = tmp_path / "int8"
    main(["export", str(tmp_path / "model"), str(small), "--format", "openvino", "--dtype", "int8"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("Largest difference of int8: ") and len(lines) == 5  # progress is elsewhere
    assert {path.name for path in small.iterdir()} == FILES - {"model.onnx"} | files and damage(small) is None
    assert json.loads((small / "ov_config.json").read_text())["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == 128
    results = json.loads((small / "export.json").read_text())
    assert results["bytes"]["OpenVINO int8"] < 0.6 * results["bytes"]["OpenVINO"]
    assert 0.5 > results["int8_difference"] > results["agreement"]["tolerance"]
    run = openvino_file.runner(small / "openvino_model.xml", "int8")
    inputs = random_inputs(load(str(tmp_path / "model")), Case(3, 23, "right"))
    alone = np.concatenate([run({name: array[[row]] for name, array in inputs.items()})[0] for row in range(3)])
    np.testing.assert_allclose(run(inputs)[0], alone, atol=0.1 * results["int8_difference"])
    subprocess.run([sys.executable, "-c", SIGNAL_AFTER_RUNNERS, small], check=True)


SIGNAL_AFTER_RUNNERS = """
import signal, sys
from pathlib import Path
from linformer_kit.export.openvino_file import FILE, runner

runners = [runner(Path(sys.argv[1]) / FILE) for _ in range(2)]
del runners[0], runners[0]
signal.signal(signal.SIGINT, lambda *_: None)
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("form", "package", "extra"), [("onnx", "onnxscript", "export"), ("openvino", "openvino", "openvino")]
)
def test_without_a_library_one_line_says_which(form, package, extra, tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, f"linformer_kit.export.{form}_file", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    error = fail(capsys, "export", "model", tmp_path / "out", "--format", form)
    assert f'expected the package {package} (pip install "linformer-kit[{extra}]"), got none' in error


def test_without_the_library_for_int8_one_line_says_which(tmp_path, capsys, monkeypatch):
    pytest.importorskip("openvino")
    monkeypatch.setattr(command, "version", version_without("nncf"))
    error = fail(capsys, "export", "model", tmp_path / "out", "--format", "openvino", "--dtype", "int8")
    assert 'expected the package nncf (pip install "linformer-kit[openvino]"), got none' in error


def version_without(package):
    def version(name):
        if name == package:
            raise PackageNotFoundError(name)
        return "1"

    return version


@pytest.mark.e2e
def test_what_does_not_agree_leaves_nothing(tmp_path, capsys, monkeypatch, caplog):
    """PyTorch with a numerical error in place of an ONNX file. Parts of an embedder that are left out are named."""
    classifier = linformer("LinformerForSequenceClassification", tmp_path / "model", trained_pieces=True)
    model = load(str(classifier))
    modules = [{"path": path, "type": f"library.{path}"} for path in ("Transformer", "Pooling", "Dense")]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    for module in ("Transformer", "Pooling", "Dense"):
        (tmp_path / "model" / module).mkdir()
    monkeypatch.setattr(onnx_file, "write", lambda source, path: path.write_bytes(b"a file"))
    monkeypatch.setattr(onnx_file, "runner", lambda path: lambda inputs: [model.run(inputs)[0] + 0.01])
    error = fail_last_line(capsys, "export", tmp_path / "model", tmp_path / "out")
    assert "model: expected the exported model within " in error
    assert "model: not in the result: Pooling, Dense" in caplog.text
    assert f"reads long texts as pieces; the file reads their first {LENGTH} tokens only" in caplog.text
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
