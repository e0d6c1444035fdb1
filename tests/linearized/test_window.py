"""A sliding window in linearised encoders: every family, padding, saved models."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from linformer_kit import InputError
from tests.conftest import as_in_the_paper
from tests.families import FAMILIES, build, example

LENGTH = FAMILIES["bert"].sizes["max_position_embeddings"]
TEXT = [name for name, family in FAMILIES.items() if "vocab_size" in family.sizes]


def of(name: str, window: int = 5, **options: object):
    torch.manual_seed(0)
    return as_in_the_paper(build(FAMILIES[name]), 7, sliding_window=window, **options)


@pytest.mark.parametrize("name", TEXT)
@torch.no_grad()
def test_neighbours_bring_a_student_closer_to_its_teacher(name):
    torch.manual_seed(0)
    teacher = build(FAMILIES[name])
    inputs = example(teacher, LENGTH)
    expected = teacher(**inputs)[0]
    near, far = ((of(name, window)(**inputs)[0] - expected).norm().item() for window in (LENGTH, 0))
    assert near < far


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_changes_nothing(side):
    model = of("roberta")
    ids = torch.randint(3, 90, (2, 31))
    mask = torch.ones_like(ids)
    hidden, real = (slice(0, 9), slice(9, 31)) if side == "left" else (slice(22, 31), slice(0, 22))
    mask[1, hidden], ids[1, hidden] = 0, model.config.pad_token_id
    together = model(input_ids=ids, attention_mask=mask, output_attentions=True)
    alone = model(input_ids=ids[1:, real], output_attentions=True)
    torch.testing.assert_close(together[0][1, real], alone[0][0], rtol=1e-4, atol=1e-5)
    for padded, short in zip(together.attentions, alone.attentions, strict=True):
        torch.testing.assert_close(padded[1, :, real], short[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_saved_model_keeps_its_window(tmp_path):
    model = of("bert")
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    inputs = example(model, 31)
    assert torch.equal(loaded(**inputs)[0], model(**inputs)[0])
    assert loaded.config.linformer["sliding_window"] == 5
    model.resize_sequence_length(2 * LENGTH)
    assert model(**example(model, 2 * LENGTH))[0].isfinite().all()


def test_other_windows_are_refused():
    with pytest.raises(InputError, match=r"^sliding_window: expected an integer from 0 to 16,777,216, got -1$"):
        of("bert", -1)
