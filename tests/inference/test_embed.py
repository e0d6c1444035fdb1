"""`linformer embed`: rows in order, resumed runs, and rejected input."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

import linformer_kit as lk
from linformer_cli.cli import main
from linformer_cli.settings import EmbedSettings
from linformer_kit.files.folders import locked
from linformer_kit.inference import batches, embed
from linformer_kit.inference import output as outputs
from tests.conftest import SIZES, fail, randomise, save_tokenizer
from tests.inference.conftest import LONGEST, TEXTS, described, encoded


def command(folder, output, *options):
    places = [str(folder / "model"), str(folder / "texts.jsonl")]
    return ["embed", *places, "--text_column", "body", "--out", str(output), "--batch_size", "2", *options]


def test_each_row_is_what_sentence_transformers_encodes(folder, tmp_path, capsys, caplog):
    """Also of a plain encoder, which gets the mean of its hidden states, and says so."""
    output = tmp_path / "new" / "vectors.npy"
    main(command(folder, output))
    vectors = np.load(output)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    expected = encoded(folder / "model", TEXTS)
    assert vectors.shape == expected.shape and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)
    cut = sum(len(tokenizer(text)["input_ids"]) > LONGEST for text in TEXTS)
    error = capsys.readouterr().err
    assert "model: a plain encoder (no modules.json): embedded with mean pooling\n" in caplog.text
    assert f"23 texts, {vectors.shape[1]} numbers each, in {output}\n" in error
    assert cut and f"{cut} texts of more than {LONGEST} tokens were truncated; --pieces reads whole texts\n" in error
    assert sorted(path.name for path in output.parent.iterdir()) == ["vectors.npy", "vectors.npy.run.json"]


@pytest.mark.parametrize(
    ("modules", "config"),
    [
        ([Pooling(33, "cls"), Normalize()], {"do_lower_case": True}),
        ([Pooling(33, ("mean", "max")), Dense(66, 17)], {"truncate_dim": 13, "max_seq_length": 11}),
        ([Pooling(33, "mean", include_prompt=False)], {"prompts": {"query": "the story: "}, "default_prompt_name": "query"}),
    ],
)  # fmt: skip
def test_the_folder_says_how_a_text_is_embedded(folder, tmp_path, modules, config, caplog):
    model = described(folder, tmp_path / "model", modules, config)
    texts = [text.title() if number % 2 else text for number, text in enumerate(TEXTS)]
    (tmp_path / "texts.csv").write_text("text\n" + "".join(f"{text}\n" for text in texts))
    options = ["--out", tmp_path / "vectors.npy", "--batch_size", 32]
    main(["embed", *map(str, (model, tmp_path / "texts.csv", *options))])
    expected = encoded(model, texts)
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected, rtol=0, atol=1e-6)
    assert expected.shape[1] == config.get("truncate_dim", 33) and "plain" not in caplog.text
    plain = encoded(folder / "model", texts)
    assert expected.shape != plain.shape or np.abs(expected - plain).max() > 1e-3


def test_e_and_f_that_were_never_trained_are_said(folder, tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = lk.LinformerConfig(**SIZES)
    for name, model in (("new", lk.LinformerModel(config)), ("trained", randomise(lk.LinformerModel(config)))):
        model.save_pretrained(tmp_path / name)
        save_tokenizer(tmp_path / name)
        texts = [str(folder / "texts.jsonl"), "--text_column", "body"]
        main(["embed", str(tmp_path / name), *texts, "--out", f"{name}.npy"])
    said = [record.args[0] for record in caplog.records if "were never trained" in record.msg]
    assert said == [str(tmp_path / "new")]


def test_weights_in_bfloat16(folder, tmp_path, capsys):
    output = tmp_path / "vectors.npy"
    main(command(folder, output, "--dtype", "bfloat16"))  # all computed in it, nothing in float32
    main(command(folder, tmp_path / "full.npy"))
    vectors, full = np.load(output), np.load(tmp_path / "full.npy")
    distance = np.linalg.norm(vectors - full, axis=1) / np.linalg.norm(full, axis=1)
    assert vectors.dtype == np.float32 and distance.min() > 0 and distance.max() < 0.05
    record = tmp_path / "vectors.npy.run.json"
    free = {"model", "file", "out", "resume", "device", "batch_size"}
    assert json.loads(record.read_text()).keys() >= {field.name for field in dataclasses.fields(EmbedSettings)} - free
    message = f"resume: expected dtype as in {record}, 'bfloat16', got 'auto'"
    assert message in fail(capsys, *command(folder, output, "--resume"))


def at_group(patch, groups: list[int], number: int, call) -> None:
    """Call something while the model runs on so manyth group."""
    pad = batches.TextModel.pad

    def watched(self, windows):
        if len(groups) == number:
            call()
        return pad(self, windows)

    patch.setattr(batches.TextModel, "pad", watched)


def in_small_groups(monkeypatch) -> list[int]:
    """The numbers of texts of each group, which has 101 tokens or more."""
    monkeypatch.setattr(batches.TextModel, "_group_tokens", 101)
    sizes, in_groups = [], batches.TextModel._in_groups

    def counted(self, texts):
        for group in in_groups(self, texts):
            sizes.append(len(group[0]))
            yield group

    monkeypatch.setattr(batches.TextModel, "_in_groups", counted)
    return sizes


def lines(capsys) -> list[str]:
    """What a command says, without the bar that a slow machine shows."""
    return [line for line in capsys.readouterr().err.splitlines() if line and "%|" not in line]


@pytest.mark.parametrize(
    ("options", "number", "code"),
    [([], signal.SIGTERM, 143), (["--pieces", "--max_length", "17"], signal.SIGINT, 130)],
)
def test_a_run_that_is_asked_to_stop_goes_on_behind_the_last_group(
    folder, tmp_path, monkeypatch, capsys, options, number, code
):
    """The same bit for bit, and with the counts of an uninterrupted run."""
    groups = in_small_groups(monkeypatch)
    main(command(folder, tmp_path / "whole.npy", *options))
    said_of_all = lines(capsys)
    first, second, *others = groups
    groups.clear()
    output, handler = tmp_path / "vectors.npy", signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_:
        at_group(patch, groups, 3, lambda: signal.raise_signal(number))
        main(command(folder, output, *options))
    signal.signal(signal.SIGINT, handler)
    done = first + second
    assert exit_.value.code == code and groups == [first, second, others[0]] and len(others) > 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"linformer: stopped after {done} of 23 texts; --resume goes on from text {done + 1}"
    groups.clear()
    main(command(folder, output, *options, "--resume"))
    assert groups == others and output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    said = [line.replace("vectors.npy", "whole.npy") for line in lines(capsys)]
    assert said == said_of_all and ("truncated" in said[-1]) == (not options)
    assert not list(tmp_path.glob("*.part"))


def test_an_interrupted_run_goes_on(folder, tmp_path, monkeypatch, capsys):
    """Killed in the last group; what is damaged in the record is named."""
    groups = in_small_groups(monkeypatch)
    main(command(folder, tmp_path / "whole.npy"))
    every = list(groups)
    groups.clear()
    output, record = tmp_path / "vectors.npy", tmp_path / "vectors.npy.run.json"
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        at_group(patch, groups, len(every), Mock(side_effect=KeyboardInterrupt))
        main(command(folder, output))
    assert not output.exists() and json.loads(record.read_text())["texts"] == sum(every[:-1])
    assert "expected a new file" in fail(capsys, "embed", "/no-model", *command(folder, output)[2:])
    with (tmp_path / "vectors.npy.part").open("ab") as part:
        part.write(b"what the group wrote")
    groups.clear()
    main(command(folder, output, "--resume"))
    assert groups == every[-1:] and output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    main(command(folder, output, "--resume"))  # nothing is left
    assert groups == every[-1:]
    before = record.read_text()
    for name, wrong in (("texts", "x"), ("bytes", -5), ("truncated", None), ("counts", {"a": "b"})):
        record.write_text(json.dumps(json.loads(before) | {name: wrong}))
        assert f"resume: {record}: {name}" in fail(capsys, *command(folder, output, "--resume"))
    record.write_text(before)
    np.save(output, np.zeros((3, 2), dtype=np.float32))
    message = f"resume: expected {128 + 23 * 33 * 4:,} bytes in {output}, got fewer"
    assert message in fail(capsys, *command(folder, output, "--resume"))


@pytest.mark.parametrize("options", [[], ["--pieces", "--max_length", "17"]])
def test_the_bar_counts_tokens(folder, tmp_path, monkeypatch, options):
    """Of all texts as it expects, from their characters, after the first group."""
    in_small_groups(monkeypatch)
    moved, totals, update = [], [], batches.tqdm.update

    def moving(bar, count=1):
        moved.append(count)
        totals.append(bar.total)
        return update(bar, count)

    monkeypatch.setattr(batches.tqdm, "update", moving)
    main(command(folder, tmp_path / "vectors.npy", *options))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    lengths = [len(tokenizer(text)["input_ids"]) for text in TEXTS]
    if options:
        lengths = [length + 2 * ((length - 3) // 15) for length in lengths]  # two special ones around 15
    tokens = sum(lengths if options else [min(length, LONGEST) for length in lengths])
    assert sum(moved) == totals[-1] == tokens
    assert 0.5 < totals[0] / tokens < 2 and moved[0] == max(moved[:2])


def test_rows_are_in_the_order_of_the_files_as_given(folder, tmp_path, monkeypatch, capsys):
    """A file that is named twice is there twice, a folder's are sorted, blank lines and files have a row too."""
    monkeypatch.chdir(tmp_path)
    contents = {"b.txt": "good\n\n  \nbad", "a.txt": "fine\n", "notes/z.txt": "poor", "notes/c/d.txt": ""}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    files = ["b.txt", "a.txt", "notes", "b.txt", "notes/z.txt"]
    for document, texts, rows in (
        ("line", ["good", "", "  ", "bad", "fine", "poor", "good", "", "  ", "bad", "poor"], [4, 1, 0, 1, 4, 1]),
        ("file", [contents[name] for name in ("b.txt", "a.txt")] + ["", "poor", contents["b.txt"], "poor"], [1] * 6),
    ):
        main(["embed", str(folder / "model"), *files, "--out", f"{document}.npy", "--document", document])
        expected = encoded(folder / "model", texts)
        np.testing.assert_allclose(np.load(f"{document}.npy"), expected, rtol=0, atol=1e-6)
        order = ["b.txt", "a.txt", "notes/c/d.txt", "notes/z.txt", "b.txt", "notes/z.txt"]
        starts = [sum(rows[:number]) for number in range(6)]
        record = json.loads((tmp_path / f"{document}.npy.run.json").read_text())
        listed = [tuple(each.values()) for each in record["rows"]]
        assert listed == list(zip(order, starts, rows, strict=True))
        lines = [f"| {name} | {start} | {count} |" for name, start, count in listed]
        assert capsys.readouterr().err.splitlines()[-8:] == [
            "| file | first row | rows |",
            "| --- | --- | --- |",
            *lines,
        ]
    main(["embed", str(folder / "model"), *["a.txt"] * 23, "--out", "many.npy"])
    assert capsys.readouterr().err.splitlines()[-2:] == ["| a.txt | 19 | 1 |", "and 3 more files"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "OUT/vectors.bin"], "out: expected a file whose name ends in .npy, got "),
        (["--max_length", "100"], f"max_length: expected at most {LONGEST} (the model's limit), got 100"),
    ],
)
def test_rejected(folder, tmp_path, capsys, options, message):
    options = [option.replace("OUT", str(tmp_path)) for option in options]
    assert message in fail(capsys, *command(folder, tmp_path / "vectors.npy", *options))
    assert not any(tmp_path.iterdir())


def test_a_run_that_ended_before_the_output_was_named_goes_on(folder, tmp_path, monkeypatch, capsys):
    main(command(folder, tmp_path / "whole.npy"))
    output = tmp_path / "vectors.npy"

    def failed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(outputs.os, "replace", failed)
        patched.setattr(outputs, "write_whole", lambda path, text: path.write_text(text))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            main(command(folder, output))
    main(command(folder, output, "--resume"))
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_an_output_has_one_writer(folder, tmp_path, monkeypatch, capsys):
    """The second one, also of --resume, names the first; so does one that has found no output before it got the lock."""
    output, lock = tmp_path / "vectors.npy", tmp_path / "vectors.npy.lock"
    with locked(lock, "out"):
        owner = f"process {os.getpid()} on {socket.gethostname()}, which holds {lock}"
        for options in ([], ["--resume"]):
            error = fail(capsys, *command(folder, output, *options))
            assert error.endswith(f"out: expected one run at a time, got another one, {owner}")
        assert [*tmp_path.iterdir()] == [lock]
    load = embed.load_embedder
    monkeypatch.setattr(embed, "load_embedder", lambda *names, **options: output.touch() or load(*names, **options))
    assert f"out: expected a new file, got {output}; --resume" in fail(capsys, *command(folder, output))
    assert [*tmp_path.iterdir()] == [output] and not output.stat().st_size


def test_no_foreign_code_and_no_pickle(folder, tmp_path, capsys):
    """Of modules that the folder names or holds."""
    model = described(folder, tmp_path / "model", [Pooling(33, "mean"), Dense(33, 17)])
    arguments = ["embed", model, folder / "texts.jsonl", "--text_column", "body", "--out", tmp_path / "vectors.npy"]
    weights = model / "2_Dense" / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    message = f"model: expected 2_Dense/model.safetensors in {model}, got 2_Dense/pytorch_model.bin, a pickle"
    assert message in fail(capsys, *arguments)
    (model / "evil.py").write_text("raise SystemExit('it ran')\n")
    modules = json.loads((model / "modules.json").read_text())
    (model / "modules.json").write_text(json.dumps([*modules[:2], {**modules[2], "path": "", "type": "evil.Dense"}]))
    assert "references the module class 'evil.Dense', which is not part of Sentence Transformers" in fail(
        capsys, *arguments
    )
    assert not (tmp_path / "vectors.npy").exists()
