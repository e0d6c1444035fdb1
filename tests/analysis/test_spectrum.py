"""`linformer spectrum`: files, choice of k, rejected settings, Ctrl-C."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModel, AutoTokenizer

from linformer_cli.cli import main
from linformer_kit import LinformerConfig, attention_spectrum
from tests.conftest import fail, write_corpus, write_model


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "texts").mkdir()
    return write_corpus(tmp_path / "texts")


@pytest.fixture
def model(tmp_path, corpus):
    return write_model(tmp_path / "model", (corpus / "0.txt").read_text(), attention="full")


def run(model, corpus, out, *options: str) -> dict:
    main(["spectrum", str(model), "--text_file", str(corpus), "--output_dir", str(out), "--samples", "7", *options])
    return json.loads((out / "spectrum.json").read_text())


@pytest.mark.e2e
def test_the_figure_and_its_numbers(model, corpus, drawn, tmp_path, capsys):
    results = run(model, corpus, tmp_path / "out")
    out = capsys.readouterr().out
    assert "| layer | share of the 5 largest |" in out and "All heads of all layers" in out
    assert (tmp_path / "out" / "spectrum.md").read_text() in out
    assert (tmp_path / "out" / "spectrum.png").stat().st_size > 20_000
    assert (results["samples"], results["tokens"], results["seq_len"]) == (7, 7 * 23, 23)
    assert np.shape(results["cumulative"]) == np.shape(results["spread"]) == (2, 3, 23)
    # The first sequence of each file: start, tokens, end.
    tokenizer, encoder = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    files = [corpus / f"{number}.txt" for number in (0, 1, 10, 11, 12, 2, 3)]
    ids = [tokenizer(path.read_text(), add_special_tokens=False)["input_ids"][:21] for path in files]
    batches = [{"input_ids": torch.tensor([[0, *each, 2]])} for each in ids]
    assert tokenizer.convert_ids_to_tokens([0, 2]) == ["<s>", "</s>"]
    np.testing.assert_allclose(results["cumulative"], attention_spectrum(encoder, batches).cumulative, atol=1e-6)


@pytest.mark.e2e
def test_weights_in_bfloat16(model, corpus, tmp_path):
    short, exact = (
        run(model, corpus, tmp_path / dtype, "--dtype", dtype)["cumulative"] for dtype in ("bfloat16", "float32")
    )
    np.testing.assert_allclose(short, exact, atol=1e-2)
    assert short != exact


@pytest.mark.e2e
def test_what_is_chosen_trains(model, corpus, tmp_path, capsys, caplog):
    """From all sequences that there are; fewer than asked for are said."""
    results = run(model, corpus, tmp_path / "out", "--energy", "0.8", "--samples", "100000")
    assert f"{results['samples']:,} of the 100,000 sequences asked for" in caplog.text
    chosen = results["projected_dim"]
    written = yaml.safe_load((tmp_path / "out" / "projected_dims.yaml").read_text())["model"]
    assert written["projected_dim"] == chosen and len(chosen) == 2 and "rank for 0.8" in capsys.readouterr().out
    LinformerConfig(hidden_size=33, **written)
    main(
        [
            "pretrain", "--config", str(tmp_path / "out" / "projected_dims.yaml"), "--train_file", str(corpus),
            "--output_dir", str(tmp_path / "trained"), "--max_steps", "1",
            "--model.hidden_size", "33", "--model.vocab_size", "277", "--report_to", "none",
        ]
    )  # fmt: skip
    assert AutoModel.from_pretrained(tmp_path / "trained").config.projected_dim == chosen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seq_len", "99"], "seq_len: expected at most 23 (the model's limit), got 99"),
        (["--energy", "0"], "energy: expected greater than 0, got 0"),
        (["--samples", "99"], "9.txt line 1: expected UTF-8 text, got the byte 0xff"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(model, corpus, tmp_path, capsys, options, message):
    (corpus / "9.txt").write_bytes(b"\xff\xfe" * 100)
    error = fail(capsys, "spectrum", model, "--text_file", corpus, "--output_dir", tmp_path / "out", *options)
    assert message in error
    assert not (tmp_path / "out").exists()
