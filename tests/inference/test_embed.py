"""`linformer embed`: rows in order, resumed runs, and rejected input."""

from __future__ import annotations

import dataclasses
import json
import signal

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

import linformer_kit as lk
from linformer_cli.cli import main
from linformer_cli.settings import EmbedSettings, PredictSettings, declare
from linformer_kit import InputError
from linformer_kit.inference import batches, embedder, files
from tests.conftest import SIZES, fail, fail_last_line, randomise, save_tokenizer
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
        main(
            [
                "embed",
                str(tmp_path / name),
                str(folder / "texts.jsonl"),
                "--text_column",
                "body",
                "--out",
                f"{name}.npy",
            ]
        )
    said = [record.args[0] for record in caplog.records if "were never trained" in record.msg]
    assert said == [str(tmp_path / "new")]


def test_weights_in_bfloat16(folder, tmp_path, capsys):
    output = tmp_path / "vectors.npy"
    main(command(folder, output, "--dtype", "bfloat16"))  # all computed in it, nothing in float32
    main(command(folder, tmp_path / "full.npy"))
    vectors, full = np.load(output), np.load(tmp_path / "full.npy")
    distance = np.linalg.norm(vectors - full, axis=1) / np.linalg.norm(full, axis=1)
    assert vectors.dtype == np.float32 and distance.min() > 0 and distance.max() < 0.05
    message = f"resume: expected dtype as in {tmp_path / 'vectors.npy.run.json'}, 'bfloat16', got 'auto'"
    assert message in fail(capsys, *command(folder, output, "--resume"))


@pytest.mark.parametrize("kind", [EmbedSettings, PredictSettings])
def test_a_resumed_run_has_all_settings_that_change_its_output(folder, tmp_path, kind):
    """Also those of a later version."""

    @declare.settings
    class Later(kind):
        later: declare.Texts[int] = 3

    class Model:
        def groups(self, texts, *_):
            yield list(texts)

    def run(**changes):
        values = {"model": "m", "file": [str(folder / "texts.jsonl")], "out": str(tmp_path / "x.npy")} | changes
        output = files.TextsAndOutput(Later(text_column="body", **values))
        output.find_texts(files.TextColumns("body"), document="line")
        output.write(Model(), {}, lambda texts, done: b"")

    run()
    free = {"model", "file", "out", "resume", "device", "batch_size"}
    names = {field.name for field in dataclasses.fields(Later)} - free
    assert json.loads((tmp_path / "x.npy.run.json").read_text()).keys() == names | {"files", "texts", "bytes"}
    run(resume=True, device="cpu", batch_size=5)
    with pytest.raises(InputError, match=r"^resume: expected later as in .*x.npy.run.json, 3, got 5$"):
        run(resume=True, later=5)


def test_an_interrupted_run_goes_on(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(batches, "_GROUP_TEXTS", 8)
    monkeypatch.setattr(files, "_SECONDS", 0)
    main(command(folder, tmp_path / "whole.npy"))
    original, calls = embedder.Embedder.embed, []

    def interrupted(self, texts):
        calls.append(len(texts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, texts)

    output = tmp_path / "vectors.npy"
    monkeypatch.setattr(embedder.Embedder, "embed", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main(command(folder, output))
    assert not output.exists() and json.loads((tmp_path / "vectors.npy.run.json").read_text())["texts"] == 16
    assert "expected a new file" in fail(capsys, "embed", "/no-model", *command(folder, output)[2:])
    main(command(folder, output, "--resume"))
    assert calls == [8, 8, 7, 7]
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    main(command(folder, output, "--resume"))  # nothing is left
    assert len(calls) == 4
    record = tmp_path / "vectors.npy.run.json"
    before = record.read_text()
    for wrong in ("x", -5, None):
        record.write_text(json.dumps(json.loads(before) | {"texts": wrong}))
        message = f"resume: expected a number of texts in {record}, got {wrong!r}"
        assert message in fail(capsys, *command(folder, output, "--resume"))
    record.write_text(before)
    np.save(output, np.zeros((3, 2), dtype=np.float32))
    message = f"resume: expected {128 + 23 * 33 * 4:,} bytes in {output}, got fewer"
    assert message in fail(capsys, *command(folder, output, "--resume"))


def batch_by_batch(monkeypatch, at_batch=lambda number: None) -> list[int]:
    """The numbers of windows of each batch that is run, as they come; a call before each of them."""
    pad, sizes = batches.TextModel.pad, []

    def counted(self, windows):
        if "_reads_padding" in vars(self):  # which runs the model as well
            at_batch(len(sizes))
            sizes.append(len(windows))
        return pad(self, windows)

    monkeypatch.setattr(batches.TextModel, "pad", counted)
    return sizes


@pytest.mark.parametrize(
    ("options", "group", "finished"),
    [
        ([], 23, 8),
        (["--pieces", "--max_length", "17"], 23, 2),
        (["--chunk_tokens", "7"], 23, 6),
        (["--chunk_tokens", "7"], 4, 7),  # in the second group
    ],
)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_asked_to_stop_saves_its_batches(
    folder, tmp_path, monkeypatch, capsys, options, group, finished, number, code
):
    monkeypatch.setattr(batches, "_GROUP_TEXTS", group)
    main(command(folder, tmp_path / "whole.npy", *options))
    output, handler = tmp_path / "vectors.npy", signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_:
        sizes = batch_by_batch(patch, lambda batch: batch == 3 and signal.raise_signal(number))
        main(command(folder, output, *options))
    signal.signal(signal.SIGINT, handler)
    assert exit_.value.code == code and sizes == [2] * 4
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"linformer: stopped after {finished} of 23 texts; --resume goes on from text {finished + 1}"
    with monkeypatch.context() as patch:
        sizes = batch_by_batch(patch)
        main(command(folder, output, *options, "--resume"))
    assert options or sum(sizes) == 23 - 8
    for each in tmp_path.glob("whole.npy*"):
        if each.suffix != ".json":
            assert each.read_bytes() == each.with_name(each.name.replace("whole", "vectors")).read_bytes()
    assert not list(tmp_path.glob("*.npz")) and not list(tmp_path.glob("*.part"))


def test_it_saves_at_most_every_thirty_seconds_and_its_bar_moves_with_each_batch(folder, tmp_path, monkeypatch):
    now, saved, shown = [0.0], [], []
    monkeypatch.setattr(files.time, "monotonic", lambda: now[0])
    write, update = files.write_whole, batches.tqdm.update
    monkeypatch.setattr(files, "write_whole", lambda path, text: (saved.append(now[0]), write(path, text)))
    monkeypatch.setattr(batches.tqdm, "update", lambda bar, count=1: (shown.append(count), update(bar, count)))
    batch_by_batch(monkeypatch, lambda batch: now.__setitem__(0, now[0] + 11))
    main(command(folder, tmp_path / "vectors.npy"))
    assert saved == [0, 33, 66, 99, 132, 132]  # at the start, in time, and at the end
    assert shown == [2] * 11 + [1, 0]


def test_what_another_run_has_saved_is_not_taken(folder, tmp_path, monkeypatch):
    """Of a run with other settings, that did not end, by one that is killed before it saves."""
    output, options = tmp_path / "vectors.npy", ["--max_length", "11"]
    main(command(folder, tmp_path / "whole.npy", *options))
    for number, more in ((signal.SIGTERM, []), (None, options)):
        for path in tmp_path.glob("vectors.npy.[pr]*"):  # all but what was saved of batches
            path.unlink()

        def at_batch(batch, number=number):
            if batch == 3 and number:
                signal.raise_signal(number)
            if batch == 5:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            batch_by_batch(patch, at_batch)
            main(command(folder, output, *more))
        assert (tmp_path / "vectors.npy.batches.npz").exists()
    main(command(folder, output, *options, "--resume"))
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()


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
        patched.setattr(files.os, "replace", failed)
        patched.setattr(files, "write_whole", lambda path, text: path.write_text(text))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            main(command(folder, output))
    main(command(folder, output, "--resume"))
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()


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


def test_no_file_of_texts_or_of_another_run_is_overwritten(folder, tmp_path, capsys):
    """A new output without pieces has no old ones beside it."""
    output, pieces = tmp_path / "vectors.npy", tmp_path / "vectors.npy.pieces.jsonl"
    pieces.write_text("of another run")
    assert pieces.name in fail_last_line(capsys, *command(folder, output, "--chunk_tokens", "3"))
    assert pieces.read_text() == "of another run" and not output.exists()
    pieces.unlink()
    main(command(folder, output, "--chunk_tokens", "3"))
    before = pieces.read_bytes()
    again = ["embed", folder / "model", pieces, "--out", output, "--chunk_tokens", "3", "--resume"]
    assert "out: expected another file than that of the texts" in fail_last_line(capsys, *again)
    assert pieces.read_bytes() == before
