"""`linformer pretrain`, end to end on a small corpus, as a user calls it."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, pipeline

import linformer_kit as lk
from linformer_cli.cli import main
from linformer_kit.data.packing import next_tokens
from linformer_kit.data.tokenizer import train_tokenizer
from linformer_kit.training.pretrain import CausalLanguageModel, _unigram_entropy
from tests.conftest import PRETRAIN_SIZES, fail, fail_last_line, randomise, write_corpus

pytestmark = pytest.mark.e2e

STEPS = {"max_steps": 4, "eval_steps": 2, "save_steps": 2, "logging_steps": 1, "warmup_steps": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def arguments(corpus: Path, output: Path, *more: str) -> list[str]:
    options = {**STEPS, "seed": 3, "per_device_train_batch_size": 3, "report_to": "none", "output_dir": output}
    options |= {f"model.{k}": v for k, v in PRETRAIN_SIZES.items()}
    return ["pretrain", "--train_file", str(corpus), *(f"--{name}={value}" for name, value in options.items()), *more]


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory) -> Path:
    """One run, shared by all tests that do not change it."""
    folder = tmp_path_factory.mktemp("run") / "out"
    main(arguments(corpus, folder, "--report_to=tensorboard"))
    return folder


def test_results_are_consistent(run):
    results = json.loads((run / "metrics.json").read_text())
    assert 0 < results["unigram_entropy"] < math.log(PRETRAIN_SIZES["vocab_size"])
    assert [step for step, _ in results["curve"]] == [0, 2, 4]
    assert results["curve"][-1][1] == results["validation_loss"]
    assert results["perplexity"] == pytest.approx(math.exp(results["validation_loss"]))
    matrices = PRETRAIN_SIZES["num_hidden_layers"] * PRETRAIN_SIZES["num_attention_heads"]  # W_P, which none share
    assert results["model"]["projection_matrices"] == matrices
    for guess in results["guesses"]:
        assert "<mask>" in guess["text"] and guess["word"].strip().isalpha()
        assert len(guess["tokens"]) == 3 and guess["probabilities"] == sorted(guess["probabilities"], reverse=True)
    assert results["guesses"]
    table = (run / "metrics.md").read_text()
    assert f"{results['validation_loss']:.3f}" in table and f"{results['unigram_entropy']:.3f}" in table


def test_model_and_tokenizer_load_and_fit(run):
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    assert type(model) is lk.LinformerForMaskedLM
    assert tokenizer.model_max_length == PRETRAIN_SIZES["max_position_embeddings"]
    assert set(tokenizer("a")) == {"input_ids", "attention_mask"}
    assert model.config.vocab_size == len(tokenizer)
    assert (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id) == (1, 0, 2)
    assert len(pipeline("fill-mask", model=model, tokenizer=tokenizer)("def <mask>(")) == 5


def test_going_on_from_a_model_is_resumed_exactly(run, corpus, tmp_path, capsys):
    """With E and F at a rate of their own, from the same model wherever it stands, and from no other."""
    options = ["--projection_learning_rate_factor=0.3", "--lr_scheduler_type=constant", f"--tokenizer={run}"]
    main([*arguments(corpus, tmp_path / "whole", f"--from_model={run}", "--max_steps=6"), *options])
    cut = arguments(corpus, tmp_path / "cut")
    main([*cut, f"--from_model={run}", *options])
    shutil.copytree(run, tmp_path / "moved", ignore=shutil.ignore_patterns("checkpoint-*"))
    elsewhere = f"--from_model={tmp_path / 'moved'}"
    main([*cut, elsewhere, *options, "--resume", "--max_steps=6"])
    cut_off, whole = (lk.LinformerForMaskedLM.from_pretrained(tmp_path / name) for name in ("cut", "whole"))
    for ours, theirs in zip(cut_off.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    randomise(lk.LinformerForMaskedLM.from_pretrained(run)).save_pretrained(tmp_path / "moved")
    error = fail_last_line(capsys, *cut, elsewhere, *options, "--resume", "--max_steps=7")
    advice = "if the weights were changed on purpose, remove"
    assert re.search(rf"model.safetensors: expected SHA-256 .*; {advice} .*manifest.json", error)
    (tmp_path / "moved" / "manifest.json").unlink()
    error = fail_last_line(capsys, *cut, elsewhere, *options, "--resume", "--max_steps=7")
    assert "began with, got other from model" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from_model=RUN", "--model.hidden_size=128"], "model.hidden_size: expected 33, as from_model RUN, got 128"),
        (["--from_model=RUN", "--model.causal=true"], "model.causal: expected False, as from_model RUN, got True"),
        (["--from_model=RUN", "--tokenizer=OTHER"], "tokenizer: expected that of from_model RUN, got OTHER"),
        (["--model.causal=true"], "model.projection: expected one with windows (such as mean_pool), or full attention, with causal, got 'dynamic'; the recipe `causal` has settings that fit"),
        (["--from_model=nowhere/at/all"], "from_model: expected a folder, got nowhere/at/all, which does not exist"),
        (["--train_file=nowhere"], "train_file: no such file or folder: nowhere"),
    ],
)  # fmt: skip
def test_settings_rejected_before_anything_is_written(run, corpus, capsys, tmp_path, options, message):
    train_tokenizer(["other words"], vocab_size=263, max_length=23).save_pretrained(tmp_path / "other")
    places = {"RUN": str(run), "OTHER": str(tmp_path / "other")}
    *options, message = (re.sub("RUN|OTHER", lambda name: places[name[0]], text) for text in (*options, message))
    assert message in fail(capsys, *arguments(corpus, tmp_path / "out"), *options)
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_resumed_on_other_text(corpus, capsys, tmp_path):
    text, folder, held_out = tmp_path / "text", tmp_path / "out", tmp_path / "validation.txt"
    shutil.copytree(corpus, text)
    shutil.copy(corpus / "1.txt", held_out)
    run = [*arguments(text, folder), f"--validation_file={held_out}"]
    main(run)
    before = (folder / "tokenizer.json").read_bytes()
    os.utime(text / "0.txt", ns=(1, 1))  # fetched again
    main([*run, "--resume"])
    held_out.write_text("something else entirely\n" * 50)
    error = fail_last_line(capsys, *run, "--resume", "--max_steps=6")
    assert f"resume: expected the content that the run in {folder} began with, got other validation text" in error
    shutil.copy(held_out, text / "0.txt")
    error = fail_last_line(capsys, *run, "--resume", "--max_steps=6")
    assert "began with, got other train text and validation text" in error
    assert (folder / "tokenizer.json").read_bytes() == before


def test_training_that_diverges_is_no_success(corpus, capsys, tmp_path):
    error = fail_last_line(capsys, *arguments(corpus, tmp_path / "out", "--learning_rate=1e30"))
    assert re.search(r"update \d \(epoch .*\): expected a finite loss and gradient, got a", error)
    assert "the update was not made. Lower learning_rate 1e+30" in error
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["validation_loss"] is None
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_saved_settings_repeat_the_run_elsewhere(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["pretrain", "--config", str(run / "settings.yaml")])
    (again,) = (tmp_path / "runs").iterdir()
    ours, theirs = (AutoModelForMaskedLM.from_pretrained(folder) for folder in (again, run))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_a_causal_model_is_trained_resumed_and_generates(corpus, tmp_path, capsys):
    """Exactly as without an interruption, and from a model too; its prompts begin as its blocks, and do not end."""
    options = ["--recipe=causal", "--model.attention=[linformer, full]", "--lr_scheduler_type=constant"]
    main(arguments(corpus, whole := tmp_path / "whole", *options, "--max_steps=6"))
    assert "pipeline('text-generation'" in capsys.readouterr().out
    main(arguments(corpus, cut := tmp_path / "cut", *options))
    main(arguments(corpus, cut, *options, "--max_steps=6", "--resume"))
    model, again = (AutoModelForCausalLM.from_pretrained(folder) for folder in (whole, cut))
    assert type(model) is lk.LinformerForCausalLM and all(map(torch.equal, model.parameters(), again.parameters()))

    results = json.loads((whole / "metrics.json").read_text())
    assert results["model"]["causal"] and results["guesses"] == []
    assert results["perplexity"] == pytest.approx(math.exp(results["validation_loss"]))
    assert "perplexity are over the tokens of the" in (whole / "metrics.md").read_text()
    tokenizer = AutoTokenizer.from_pretrained(whole)
    assert tokenizer("def")["input_ids"][0] == model.config.bos_token_id != tokenizer("def")["input_ids"][-1]
    assert tokenizer.decode(tokenizer("def", "x")["input_ids"]) == "<s>defx" and tokenizer.padding_side == "left"
    answers = pipeline("text-generation", str(whole))(["def function_1", "x"], batch_size=2, max_new_tokens=5)
    assert [answer[0]["generated_text"].startswith(text) for answer, text in zip(answers, ("def", "x"), strict=True)]

    main(arguments(corpus, tmp_path / "on", f"--from_model={whole}", "--max_steps=2"))
    curve = json.loads((tmp_path / "on" / "metrics.json").read_text())["curve"]
    assert curve[0][1] == pytest.approx(results["validation_loss"], rel=1e-3)
    assert "expected False for LinformerForMaskedLM, got True" in fail(capsys, "fill-mask", whole, "<mask>")


def test_the_loss_of_a_causal_model_is_over_all_tokens_but_the_first(config):
    causal = {"causal": True, "projection": "mean_pool", "sliding_window": 6}
    model, blocks = lk.LinformerForCausalLM(config(**causal)).eval(), torch.randint(5, 101, (3, 37))
    items = [next_tokens(block.numpy(), epoch=0, index=0) for block in blocks]
    batch = {name: torch.stack([item[name] for item in items]) for name in items[0]}
    task = CausalLanguageModel(model, None, train=items, validation=items, collate=len)
    assert torch.equal(batch["input_ids"], blocks) and task.labels(batch) == 3 * 36
    sums, counts = task.measure(batch)
    expected = torch.nn.functional.cross_entropy(model(blocks).logits[:, :-1].flatten(0, 1), blocks[:, 1:].flatten())
    assert counts.tolist() == [36] * 3
    torch.testing.assert_close(sums.sum() / counts.sum(), expected)
    torch.testing.assert_close(task(batch, task.labels(batch)), expected)


@pytest.mark.parametrize(("causal", "frequencies"), [(False, [2, 1, 1]), (True, [2, 1, 1, 2])])
def test_unigram_entropy_by_hand(words, causal, frequencies):
    """The token that ends a document is a target of causal models."""
    blocks = Dataset.from_dict({"input_ids": [[0, 5, 5, 2], [0, 7, 9, 2]]})
    data = SimpleNamespace(tokenizer=words, validation=SimpleNamespace(blocks=blocks.with_format("numpy")))
    expected = -sum(count / sum(frequencies) * math.log(count / sum(frequencies)) for count in frequencies)
    assert _unigram_entropy(data, causal=causal) == pytest.approx(expected)
