"""transformers' pipelines on models of this package and on linearised ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoTokenizer, pipeline

import linformer_kit
from linformer_kit import LinformerConfig, linearize
from tests.conftest import PRETRAIN_SIZES, write_teacher

WORDS = "number was good bad fine poor 0 1 2 3 4 5 6 7 8 9 ."
TASKS = {
    "fill-mask": ("ForMaskedLM", {"inputs": "number <mask> was"}),
    "text-classification": ("ForSequenceClassification", {"inputs": "number 7 was good"}),
    "feature-extraction": ("Model", {"inputs": "number 7 was good"}),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(write_teacher(tmp_path_factory.mktemp("teacher"), WORDS))


def save(kind: str, end: str, tokenizer, folder: Path) -> Path:
    torch.manual_seed(0)
    if kind == "ours":
        sizes = {**PRETRAIN_SIZES, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        model = getattr(linformer_kit, f"Linformer{end}")(LinformerConfig(**sizes))
    else:
        folder = write_teacher(folder, WORDS, f"Roberta{end}")
        model = linearize(getattr(transformers, f"Roberta{end}").from_pretrained(folder), 5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["ours", "linearised"])
@pytest.mark.parametrize("task", TASKS)
def test_pipeline(task, kind, tokenizer, tmp_path):
    """A batch with padding answers as each text does alone."""
    end, inputs = TASKS[task]
    run = pipeline(task, model=str(save(kind, end, tokenizer, tmp_path / "model")))
    alone = run(**inputs)
    batch = run([inputs["inputs"], f"{inputs['inputs']} good bad fine poor"], batch_size=2)
    expected = torch.tensor(flat(alone))
    first = torch.tensor(flat(batch[0])[: len(expected)])  # features of padding come after those of the text
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)
    assert len(expected) and expected.isfinite().all()


def flat(answer) -> list[float]:
    """The numbers of an answer, in a fixed order."""
    if isinstance(answer, dict):
        return [answer["score"]]
    if isinstance(answer, list):
        return [number for each in answer for number in flat(each)]
    return [float(answer)]
