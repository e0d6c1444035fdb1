"""`linformer fill-mask` by command, and the models that it and all other commands reject."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from linformer_cli.cli import main
from tests.conftest import PRETRAIN_SIZES, fail, write_model, write_teacher


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model", "def function(first, second): return first + second")


def test_fill_mask_prints_guesses_with_probabilities(model, capsys):
    main(["fill-mask", str(model), "def <mask>(first, <mask>)", "--top-k", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("mask")] == ["mask 1", "mask 2"]
    assert len(lines) == 8 and re.match(r' *\d+\.\d\d%  ".+"$', lines[1])
    main(["fill-mask", str(model), "def <mask>("])
    percents = [float(line.partition("%")[0]) for line in capsys.readouterr().out.splitlines()]
    assert len(percents) == 5 and percents == sorted(percents, reverse=True) and 0 < sum(percents) < 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["no mask"], "text: expected one or more <mask>, got 'no mask'"),
        (["<mask>" + " word" * 50], "text: expected at most 23 tokens, got"),
        (["<mask>", "--top_k", "1000000"], "top_k: expected at most "),
    ],
)
def test_bad_text_for_fill_mask(model, options, message, capsys):
    assert message in fail(capsys, "fill-mask", model, *options)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.e2e
def test_the_longest_text_of_a_model_whose_positions_begin_after_an_offset(linear, tmp_path, capsys):
    """RoBERTa's tables have rows that no token stands at: up to n tokens are answered, more are rejected."""
    teacher = write_teacher(tmp_path / "teacher", "it 's good bad")
    model = tmp_path / "student" if linear else teacher
    if linear:
        main(["linearize", str(teacher), str(model), "--projected_dim", "3"])
    n, around = PRETRAIN_SIZES["max_position_embeddings"], 2  # tokens before and behind the text
    main(["fill-mask", str(model), "<mask>" * (n - around)])
    assert f"mask {n - around}\n" in capsys.readouterr().out
    for longer in (n + 1, n + 2, n + 3):
        error = fail(capsys, "fill-mask", model, "<mask>" * (longer - around))
        assert f"text: expected at most {n} tokens, got {longer}" in error


@pytest.mark.slow
def test_a_reader_that_has_had_enough_is_no_error(model):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "linformer_kit", "fill-mask", str(model), "<mask>"]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "expected config.json in"),
        ("config.json", '{"model_type": "vit"}', "expected a masked language model"),
        ("tokenizer.json", None, "expected a tokenizer (tokenizer.json) in"),
    ],
)
def test_half_written_and_foreign_model_folders(model, name, content, message, capsys, tmp_path):
    shutil.copytree(model, tmp_path / "model", ignore=shutil.ignore_patterns(name))
    if content is not None:
        (tmp_path / "model" / name).write_text(content)
    assert message in fail(capsys, "fill-mask", tmp_path / "model", "<mask>")


def test_a_model_that_does_not_exist(capsys):
    assert "expected a folder, got none, which does not exist" in fail(capsys, "fill-mask", "none/", "<mask>")
