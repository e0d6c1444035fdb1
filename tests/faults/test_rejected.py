"""Contents of files that made commands crash or hang are rejected, each in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from linformer_kit import InputError
from linformer_kit.interop.loading import input_length
from tests.conftest import fail, fail_last_line

pytestmark = pytest.mark.e2e

# Billions of values from a few lines, code, nesting, bytes, and values of other types.
YAMLS = (
    b"\n".join(b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1) if n else b"x"] * 9)) for n in range(12)),
    b"model: &a {b: *a}\n",
    b"seed: !!python/name:os.system\n",
    b"[" * 5000,
    b"\0\1\2\xff\xfe",
    b"a: b: c\n\t- d\n",
    b"? [a, b]\n: c\n",
    b"seed: !!timestamp x\nmax_steps: !!int ''\n",
    b"learning_rate: 1" + b"0" * 400,
)


def write_part(place: Path, **values: Any) -> None:
    place.write_text(json.dumps(json.loads(place.read_text()) | values))


def test_settings_rejected(tmp_path, capsys):
    """Without delay: YAML anchors make billions of values from a few lines."""
    path = tmp_path / "settings.yaml"
    for content in YAMLS:
        path.write_bytes(content)
        assert fail(capsys, "pretrain", "--config", path).startswith("linformer: error: "), content


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 10**9},
        {"vocab_size": 10**6, "hidden_size": 3 * 10**5},
        {"initializer_range": float("inf")},
    ],
)
@pytest.mark.parametrize("name", ["encoder", "bert"])
def test_sizes_that_the_weights_do_not_have(places, tmp_path, capsys, name, fields):
    """Before memory is allocated for them."""
    shutil.copytree(places.models[name], tmp_path / "model")
    write_part(tmp_path / "model" / "config.json", **fields)
    error = fail(capsys, *places.commands[name](tmp_path))
    assert "by the size of its weights" in error or "expected the size of its weights" in error


def test_starts_rejected(places, tmp_path, capsys):
    shutil.copytree(places.runs["pretrain"], tmp_path / "run")
    write_part(tmp_path / "run" / "run.json", starts=3)
    error = fail_last_line(capsys, *places.commands["pretrain"](tmp_path), "--resume")
    assert "run.json: expected a list of starts, got 3" in error


def test_a_length_that_is_none_rejected(encoder):
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.model_max_length = "a"
    with pytest.raises(InputError, match=r"^tokenizer: expected a whole number as model_max_length, got 'a'$"):
        input_length(torch.nn.Linear(1, 1), tokenizer, None)
