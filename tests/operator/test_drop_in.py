"""In the place of `torch.nn.MultiheadAttention`: its layouts, masks, arguments and state dicts, or a clear rejection."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import nn

from linformer_kit import InputError, LinformerAttention
from linformer_kit.operator.projections import PROJECTIONS
from tests.conftest import randomise, some_padding

EMBED, HEADS, N, K = 33, 3, 31, 7


def pair(**arguments) -> tuple[LinformerAttention, LinformerAttention]:
    """The same attention twice: the batch first, and the length first."""
    sizes = (N, K) if arguments.get("projection", "linear") else ()
    first = randomise(LinformerAttention(EMBED, HEADS, *sizes, **arguments)).double()
    other = LinformerAttention(EMBED, HEADS, *sizes, batch_first=False, **arguments).double()
    other.load_state_dict(first.state_dict())
    return first, other


def test_arguments_stand_in_the_order_of_torchs():
    theirs, ours = (
        list(inspect.signature(kind.forward).parameters) for kind in (nn.MultiheadAttention, LinformerAttention)
    )
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("projection", [*PROJECTIONS, None])
def test_length_first(projection):
    first, other = pair(projection=projection)
    query, memory = (torch.randn(3, length, EMBED, dtype=torch.float64) for length in (11, 23))
    mask = some_padding(23) == 0
    for inputs in ((memory, memory, memory), (query, memory, memory), (query, memory, memory.clone())):
        expected, weights = first(*inputs, mask, need_weights=True)
        turned = {id(tensor): tensor.transpose(0, 1) for tensor in inputs}
        output, same = other(*(turned[id(tensor)] for tensor in inputs), mask, need_weights=True)
        torch.testing.assert_close(output.transpose(0, 1), expected)
        torch.testing.assert_close(same, weights)


@pytest.mark.parametrize("batch_first", [True, False])
def test_one_sequence_without_a_batch(batch_first):
    layer = pair()[not batch_first]
    x, mask = torch.randn(23, EMBED, dtype=torch.float64), torch.zeros(23, dtype=torch.bool)
    mask[-5:] = True
    output, weights = layer(x, x, x, mask, need_weights=True)
    batch = x[None] if batch_first else x[:, None]
    expected, batch_weights = layer(batch, batch, batch, mask[None], need_weights=True)
    assert output.shape == (23, EMBED) and weights.shape == (HEADS, 23, K)
    torch.testing.assert_close(output, expected.squeeze(0 if batch_first else 1))
    torch.testing.assert_close(weights, batch_weights[0])
    averaged = layer(x, x, x, mask, need_weights=True, average_attn_weights=True)[1]
    torch.testing.assert_close(averaged, weights.mean(dim=0))


@pytest.mark.parametrize(
    ("hidden", "dtype"), [(-1e3, torch.float32), ("min", torch.bfloat16), (-torch.inf, torch.float32)]
)
def test_masks_that_are_added_to_scores(hidden, dtype):
    layer, _ = pair()
    x, mask = torch.randn(3, 23, EMBED, dtype=torch.float64), some_padding(23) == 0
    hidden = torch.finfo(dtype).min if hidden == "min" else hidden
    added = torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, hidden)
    assert torch.equal(layer(x, x, x, added)[0], layer(x, x, x, mask)[0])


@pytest.mark.parametrize("batch_first", [True, False])
def test_another_layout_than_that_of_the_replaced_one_is_rejected(batch_first):
    ours = LinformerAttention(12, 3, 23, 5, batch_first=not batch_first)
    message = f"expected batch_first={batch_first}, as the attention that it replaces in "
    for kind, name in ((nn.TransformerEncoderLayer, "self_attn"), (nn.TransformerDecoderLayer, "multihead_attn")):
        layer = kind(12, 3, 29, batch_first=batch_first)
        before = getattr(layer, name)
        with pytest.raises(InputError, match=re.escape(f"{name}: {message}{kind.__name__}, got")):
            setattr(layer, name, ours)
        assert getattr(layer, name) is before


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_state_dicts_of_torchs_load(bias, batch_first):
    theirs = randomise(nn.MultiheadAttention(EMBED, HEADS, bias=bias, batch_first=batch_first)).double()
    full = LinformerAttention(EMBED, HEADS, projection=None, bias=bias, batch_first=batch_first).double()
    full.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 23, EMBED, dtype=torch.float64)
    torch.testing.assert_close(full(x, x, x, need_weights=True), theirs(x, x, x, average_attn_weights=False))

    ours = LinformerAttention(EMBED, HEADS, N, K, bias=bias).double()
    before = ours.projection.key_projection.clone()
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.projection.key_projection, before)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        assert torch.equal(getattr(ours, name).weight, getattr(full, name).weight)


def test_what_has_no_place_is_an_error():
    theirs = nn.MultiheadAttention(EMBED, HEADS, add_bias_kv=True)
    ours = LinformerAttention(EMBED, HEADS, N, K)
    with pytest.raises(RuntimeError, match="bias_k"):
        ours.load_state_dict(theirs.state_dict())
    with torch.device("meta"):
        empty = LinformerAttention(EMBED, HEADS, N, K)
    with pytest.raises(RuntimeError, match=r"Missing key.*projection\.key_projection"):  # no values to keep
        empty.load_state_dict(nn.MultiheadAttention(EMBED, HEADS).state_dict(), assign=True)
    with pytest.raises(RuntimeError, match=r"Missing key.*projection\.key_projection"):  # one of ours has E and F
        ours.load_state_dict({name: t for name, t in ours.state_dict().items() if "projection." not in name})


@pytest.mark.parametrize("projection", ["linear", "random"])
def test_weights_for_another_length_come_with_a_hint(projection):
    layer = LinformerAttention(EMBED, HEADS, N, K, projection=projection)
    longer = LinformerAttention(EMBED, HEADS, 2 * N, K, projection=projection)
    with pytest.raises(
        RuntimeError, match=r"projection\.seq_len: expected weights for 62, got others: .*`projection\.resize`"
    ):
        longer.load_state_dict(layer.state_dict())
    other = LinformerAttention(EMBED, HEADS, N, K - 2, projection=projection)
    with pytest.raises(RuntimeError, match=r"size mismatch") as error:
        other.load_state_dict(layer.state_dict())
    assert "resize" not in str(error.value)
