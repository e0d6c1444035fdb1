"""`linformer embed`: rows in order, resumed runs, and rejected input."""

from __future__ import annotations

import errno
import json
import shutil
from unittest.mock import Mock

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers

import linformer_kit as lk
from linformer_kit.commands.cli import main
from linformer_kit.inference import embed, embedder
from linformer_kit.interop.checkpoints import sentences
from tests.conftest import fail, fail_last_line
from tests.experiments.quality.long_texts import LONGEST, write_bert

WORDS = ["the", "film", "was", "good", "bad", "fine", "poor", "and", "so", "a", "long", "story"]
TEXTS = [" ".join(WORDS[: 1 + (7 * number) % 12] * (1 + number % 9)) for number in range(23)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A linear encoder, and a file of texts of many lengths."""
    folder = tmp_path_factory.mktemp("embed")
    teacher = write_bert(folder / "teacher")
    lk.linearize(transformers.AutoModel.from_pretrained(teacher), 7).save_pretrained(folder / "model")
    transformers.AutoTokenizer.from_pretrained(teacher).save_pretrained(folder / "model")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return folder


def command(folder, output, *options):
    file = ["texts.jsonl", "--text_column", "body"]
    return [
        "embed",
        str(folder / "model"),
        str(folder / file[0]),
        *file[1:],
        "--output",
        str(output),
        "--batch_size",
        "2",
        *options,
    ]


def test_each_row_is_the_mean_of_the_hidden_states(folder, tmp_path, capsys):
    output = tmp_path / "new" / "vectors.npy"
    main(command(folder, output, "--bf16", "false"))
    vectors = np.load(output)
    model = transformers.AutoModel.from_pretrained(folder / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    assert vectors.shape == (23, model.config.hidden_size) and vectors.dtype == np.float32
    lengths = []
    for text, vector in zip(TEXTS, vectors, strict=True):
        inputs = tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt")
        with torch.no_grad():
            mean = model(**inputs).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), rtol=0, atol=2e-6)
        lengths.append(len(tokenizer(text)["input_ids"]))
    cut = sum(length > LONGEST for length in lengths)
    error = capsys.readouterr().err
    assert f"23 texts, {vectors.shape[1]} numbers each, in {output}\n" in error
    assert cut and f"{cut} texts of more than {LONGEST} tokens were truncated\n" in error
    assert sorted(path.name for path in output.parent.iterdir()) == ["vectors.npy", "vectors.npy.run.json"]


def test_weights_in_bfloat16(folder, tmp_path, capsys):
    output = tmp_path / "vectors.npy"
    main(command(folder, output, "--dtype", "bfloat16"))  # all computed in it, nothing in float32
    vectors = np.load(output)
    model = transformers.AutoModel.from_pretrained(folder / "model", dtype=torch.bfloat16).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    inputs = tokenizer(TEXTS[-1], truncation=True, max_length=LONGEST, return_tensors="pt")
    with torch.no_grad():
        mean = model(**inputs).last_hidden_state[0].float().mean(dim=0)
    np.testing.assert_allclose(vectors[-1], (mean / mean.norm()).numpy(), rtol=0, atol=2e-3)
    main(command(folder, tmp_path / "full.npy", "--bf16", "false"))
    distance = np.linalg.norm(vectors - np.load(tmp_path / "full.npy"), axis=1)
    assert vectors.dtype == np.float32 and distance.min() > 0 and distance.max() < 0.05
    message = f"resume: expected the dtype of {tmp_path / 'vectors.npy.run.json'}, 'bfloat16', got 'auto'"
    assert message in fail(capsys, *command(folder, output, "--resume"))


def test_lines_of_text_give_the_same(folder, tmp_path):
    main(command(folder, tmp_path / "a.npy"))
    main(
        [
            "embed",
            str(folder / "model"),
            str(folder / "texts.txt"),
            "--output",
            str(tmp_path / "b.npy"),
            "--batch_size",
            "2",
        ]
    )
    assert (np.load(tmp_path / "a.npy") == np.load(tmp_path / "b.npy")).all()


def test_an_interrupted_run_goes_on(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(embed, "_BATCHES", 4)  # 8 texts between two records
    main(command(folder, tmp_path / "whole.npy"))
    original, calls = embedder.Embedder.embed_windows, []

    def interrupted(self, windows, what=None):
        calls.append(len(windows))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, windows, what)

    output = tmp_path / "vectors.npy"
    monkeypatch.setattr(embedder.Embedder, "embed_windows", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main(command(folder, output))
    assert not output.exists() and json.loads((tmp_path / "vectors.npy.run.json").read_text())["done"] == 16
    assert "expected a new file" in fail(capsys, *command(folder, output))
    longer = command(folder, output, "--resume", "--max_length", "17")
    assert f"resume: expected the max_length of {tmp_path / 'vectors.npy.run.json'}, {LONGEST}, got 17" in fail(
        capsys, *longer
    )
    main(command(folder, output, "--resume"))
    assert calls == [8, 8, 7, 7]
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    main(command(folder, output, "--resume"))  # nothing is left
    assert len(calls) == 4
    np.save(output, np.zeros((3, 2), dtype=np.float32))
    assert "resume: expected an array of shape [23, " in fail(capsys, *command(folder, output, "--resume"))
    main(command(folder, output, "--overwrite"))
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "OUT/vectors.bin"], "output: expected a file whose name ends in .npy, got "),
        (["--text_column", "text"], "text"),
        (["--max_length", "100"], f"max_length: expected at most {LONGEST} (the model's limit), got 100"),
        (["--dtype", "bfloat16", "--bf16", "true"], "bf16: expected auto or false with dtype bfloat16, got true"),
        (["--batch_size", "0"], "batch_size: expected 1 or more, got 0"),
        (["--resume", "--overwrite"], "resume, overwrite: expected at most one of them, got both"),
    ],
)
def test_refused(folder, tmp_path, capsys, options, message):
    options = [option.replace("OUT", str(tmp_path)) for option in options]
    assert message in fail(capsys, *command(folder, tmp_path / "vectors.npy", *options))
    assert not any(tmp_path.iterdir())


def test_a_run_that_ended_before_the_output_was_named_goes_on(folder, tmp_path, monkeypatch, capsys):
    """Also over an older output, which is not taken for the result."""
    main(command(folder, tmp_path / "whole.npy"))
    output = tmp_path / "vectors.npy"
    np.save(output, np.zeros_like(np.load(tmp_path / "whole.npy")))

    def failed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(embed.os, "replace", failed)
        patched.setattr(embed, "write_whole", lambda path, text: path.write_text(text))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            main(command(folder, output, "--overwrite"))
    main(command(folder, output, "--resume"))
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    mark = tmp_path / "vectors.npy.run.json"
    for done in ({}, {"done": 24}, {"done": 5}):
        mark.write_text(json.dumps({**json.loads(mark.read_text()), "done": None, **done}))
        assert "resume: expected " in fail(capsys, *command(folder, output, "--resume"))


@pytest.mark.parametrize(
    ("modules", "config", "message"),
    [
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
            "got ['pooling_mode_cls_token']",
        ),
        (["Transformer", "Pooling"], {"pooling_mode": "cls"}, "model: expected mean pooling in "),
        (
            ["Transformer", "Pooling", "Dense"],
            {"pooling_mode": "mean"},
            "model: expected modules Transformer, Pooling, Normalize, got Dense",
        ),
    ],
)
def test_another_embedding_is_refused(folder, tmp_path, capsys, modules, config, message):
    model = shutil.copytree(folder / "model", tmp_path / "model")
    paths = ["", "1_Pooling", "2_Dense"]
    listed = [
        {"type": f"sentence_transformers.models.{name}", "path": path}
        for name, path in zip(modules, paths, strict=False)
    ]
    (model / "modules.json").write_text(json.dumps(listed))
    for path in filter(None, paths):
        (model / path).mkdir()
    (model / "1_Pooling" / "config.json").write_text(json.dumps(config))
    arguments = ["embed", str(model), str(folder / "texts.txt"), "--output", str(tmp_path / "vectors.npy")]
    assert message in fail(capsys, *arguments)
    (model / "modules.json").write_text(json.dumps(listed[:2]))
    (model / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False})
    )
    main(arguments)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ("{", "modules.json: expected JSON of sentence-transformers, got "),
        ('["a"]', "modules.json: expected modules, each with the path of its folder, got ['a']"),
        ('[{"type": null, "path": ""}]', "model: expected modules Transformer, Pooling, Normalize, got None"),
    ],
)
def test_malformed_files_of_sentence_transformers(folder, tmp_path, capsys, modules, message):
    model = shutil.copytree(folder / "model", tmp_path / "model")
    (model / "modules.json").write_text(modules)
    assert message in fail(capsys, *["embed", model, folder / "texts.txt", "--output", tmp_path / "vectors.npy"])


def test_an_unknown_embedding_is_assumed_to_be_the_mean(monkeypatch, caplog):
    """Of a model whose files were cached by transformers, which does not ask for modules.json."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for read in (sentences.check_mean_pooling, sentences.sentence_files):  # `embed`; `convert` and `distill`
        caplog.clear()
        read("someone/an-encoder")
        assert "modules.json is not cached: mean pooling is assumed" in caplog.text
    monkeypatch.setattr(sentences, "try_to_load_from_cache", lambda *_: sentences._CACHED_NO_EXIST)
    caplog.clear()
    sentences.check_mean_pooling("someone/an-encoder")
    assert not caplog.text, "it is known to have none"


def test_a_table_without_rows(folder, tmp_path):
    (tmp_path / "none.csv").write_text("text\n")
    output = tmp_path / "vectors.npy"
    arguments = ["embed", str(folder / "model"), str(tmp_path / "none.csv"), "--output", str(output)]
    main(arguments)
    width = np.load(output).shape[1]
    assert np.load(output).shape == (0, width) and width > 0
    main(command(folder, output, "--overwrite"))
    assert np.load(output).shape == (23, width)
    main([*arguments, "--overwrite"])
    assert np.load(output).shape == (0, width), "no older rows"
    main([*arguments, "--resume"])
    assert not (tmp_path / "vectors.npy.part").exists()


def test_a_full_disk_is_one_line(folder, tmp_path, capsys, monkeypatch):
    """Not a signal, which writing to the memory map would give."""
    monkeypatch.setattr(
        embed.os, "posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, "No space left")), raising=False
    )
    output = tmp_path / "vectors.npy"
    assert f"{output}: No space left on device" in fail_last_line(capsys, *command(folder, output), code=1)
    assert not output.exists()
    monkeypatch.setattr(embed.os, "posix_fallocate", Mock(side_effect=OSError(errno.EOPNOTSUPP, "not supported")))
    main(command(folder, output, "--overwrite"))
    assert np.load(output).shape[0] == 23


def test_outputs_that_are_not_finite_are_no_result(folder, tmp_path, capsys):
    model = transformers.AutoModel.from_pretrained(folder / "model")
    torch.nn.init.constant_(model.embeddings.LayerNorm.bias, float("nan"))
    shutil.copytree(folder / "model", tmp_path / "model")
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "manifest.json").unlink(missing_ok=True)
    arguments = ["embed", tmp_path / "model", folder / "texts.txt", "--output", tmp_path / "vectors.npy"]
    assert "model: expected finite hidden states, got NaN or infinite ones" in fail(capsys, *arguments)
    assert not (tmp_path / "vectors.npy").exists()
