"""`linearize` as it is called without settings: nothing untrained, short texts exact, whatever they are batched with."""

from __future__ import annotations

import copy

import pytest
import torch

import linformer_kit as lk
from tests.conftest import values_of
from tests.families import FAMILIES, build, example

LENGTH = FAMILIES["bert"].sizes["max_position_embeddings"]
TEXT = [name for name, family in FAMILIES.items() if "vocab_size" in family.sizes]
SLOTS = 11


def pair(name: str, **options) -> tuple[torch.nn.Module, torch.nn.Module]:
    """An encoder in float64, and a copy of it made linear."""
    torch.manual_seed(0)
    before = build(FAMILIES[name]).double()
    return before, lk.linearize(copy.deepcopy(before), SLOTS, **options)


def test_nothing_is_untrained():
    before, after = pair("bert")
    assert after.state_dict().keys() == before.state_dict().keys()
    assert after.config.linformer["sliding_window"] == 128 and after.config.linformer["global_tokens"] == 1


@pytest.mark.parametrize(("name", "tokens"), values_of(TEXT, [1, 2, SLOTS, SLOTS + 1]))
@torch.no_grad()
def test_texts_of_as_many_tokens_as_slots_are_exact(name, tokens):
    before, after = pair(name)
    inputs = example(before, tokens)
    torch.testing.assert_close(after(**inputs)[0], before(**inputs)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("projection", ["linear", "dynamic", "random", "mean_pool", "max_pool", "conv"])
def test_a_token_is_global_and_short_texts_fill_all_slots_where_slots_are_windows(projection):
    """Other slots of a short text hold each token several times, and one token would weigh little beside them."""
    fields = pair("bert", projection=projection)[1].config.linformer
    windowed = projection not in ("linear", "dynamic", "random")
    assert (fields["global_tokens"], fields["shorter_input"]) == ((1, "stretch") if windowed else (0, "prefix"))


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_short_texts_are_exact_beside_long_ones(side):
    before, after = pair("bert", sliding_window=5)
    ids = torch.randint(3, 90, (2, LENGTH))
    mask = torch.zeros_like(ids)
    real = slice(0, SLOTS + 1) if side == "right" else slice(LENGTH - SLOTS - 1, LENGTH)
    mask[0], mask[1, real] = 1, 1
    found, expected = (model(input_ids=ids, attention_mask=mask)[0] for model in (after, before))
    torch.testing.assert_close(found[1, real], expected[1, real], rtol=1e-9, atol=1e-9)
    assert (found[0] - expected[0]).abs().max() > 1e-3, "longer than its slots"
