"""Causal attention of texts that go on: of the tokens before, a constant number of keys and values is kept.

A step with windows of 4 tokens, a sliding window w of 6, one global token g; tokens 0 … 10 are past, 11 and 12 new:

    token     0    1  2  3  4    5  6  7  8    9 10 11 12
    slots    [g]  [     0    ]  [     1    ]  [     2    ]       g + k keys and values; slot 2 was hidden until now
    kept                           5  6  7  8  9 10              the last w tokens, right-aligned
    near                           5  6  7  8  9 10 11 12        kept and new: of these, the windows with new tokens are
                                                                 computed again, and each query sees the last w

Columns of `near` are numbered from the first kept token; `shift` is added to the number of a token in its text. With
full attention all tokens are kept, and there are no slots. Axes as in `slots`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linformer_cli.errors import InputError, check_input
from linformer_kit.operator.attention import ProjectedAttention
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.operator.padding import last_tokens, take_positions
from linformer_kit.operator.projections import Tokens
from linformer_kit.operator.projections.windows import WindowProjection, Windows
from linformer_kit.operator.slots import ForwardPass, Slots
from linformer_kit.operator.window import Window


class KeyValues(NamedTuple):
    """Keys and values by heads."""

    key: Float[Tensor, "batch heads tokens head_dim"]
    value: Float[Tensor, "batch heads tokens head_dim"]


class Past(NamedTuple):
    """What a layer keeps of the tokens before."""

    tokens: KeyValues  # the last w, right-aligned; with full attention all
    slots: KeyValues | None  # of global tokens, then of windows; None: full attention


def keep(layer: ProjectedAttention, slots: Slots, forward_pass: ForwardPass) -> Past:
    """What is kept of the slots of a layer in a forward pass: copies, so that the rest can be freed."""
    near, lengths = slots.neighbours, forward_pass.lengths
    tokens = KeyValues(*(slots[:2] if near is None else near[:2]))  # without a window each token is a slot
    if near is not None:
        lengths = near.window.lengths
    count = tokens.key.shape[2] if layer.is_full else layer.sliding_window
    tokens = KeyValues(*(last_tokens(part.transpose(1, 2), lengths, count).transpose(1, 2) for part in tokens))
    if layer.is_full:
        return Past(tokens, None)
    *_, dims = layer.checked_projection()
    missing = (0, 0, 0, layer.global_tokens + max(dims) - slots.key.shape[2])
    return Past(tokens, KeyValues(F.pad(slots.key, missing), F.pad(slots.value, missing)))


def next_slots(
    layer: ProjectedAttention, hidden: Float[Tensor, "batch seq_len embed"], past: Past, forward_pass: ForwardPass
) -> Slots:
    """The slots for the queries of tokens that follow those of which `past` was kept.

    Args:
        layer: The layer.
        hidden: Input of the keys and values of the new tokens, right-padded.
        past: What was kept before.
        forward_pass: The forward pass, with the number of tokens `before` these.

    Raises:
        InputError: for a projection inside another module, another k than before, and another number format.
    """
    assert forward_pass.before is not None
    added, kept = hidden.shape[1], past.tokens.key.shape[2]
    mapped = layer.map_tokens(Tokens(hidden.unsqueeze(1), None, False, forward_pass))
    given, expected = past.tokens.key.dtype, mapped.key.dtype
    check_input(given == expected, "past_key_values", f"those of {expected}", given)
    pairs = zip(past.tokens, (mapped.key, mapped.values), strict=True)
    near = KeyValues(*(torch.cat(pair, dim=2) for pair in pairs))
    new = torch.full_like(forward_pass.before, added) if forward_pass.lengths is None else forward_pass.lengths
    shift = kept - forward_pass.before
    width = kept + added if layer.is_full else kept
    window = Window(width, is_causal=True, first=kept, lengths=kept + new, starts=shift.clamp(min=0))
    if past.slots is None:
        return Slots(near.key[:, :, :0], near.value[:, :, :0], neighbours=Neighbours(*near, window))
    slots, edges = _next_windows(layer, near, past.slots, shift, added, forward_pass)
    return Slots(*slots, neighbours=Neighbours(*near, window, edges))


def _next_windows(
    layer: ProjectedAttention, near: KeyValues, past: KeyValues, shift: Tensor, added: int, forward_pass: ForwardPass
) -> tuple[KeyValues, Tensor]:
    """The slots, of which those of windows with new tokens are new, and their edges as columns of `near`."""
    (projection, _, dims), first = layer.checked_projection(), layer.global_tokens
    if not isinstance(projection, WindowProjection):
        expected = "no module around it to continue texts (merge adapters first)"
        raise InputError(f"projection: expected {expected}, got {type(projection).__name__}")
    check_input(past.key.shape[2] == first + max(dims), "projected_dim", "as before, to continue texts", max(dims))
    n, device, total = projection.seq_len, shift.device, near.key.shape[2]
    kept = total - added
    start = (kept - shift - first)[:, None]  # number of the first new token, without global ones

    def compute(k: int) -> Slots:
        """The slots of windows with new tokens; in the place of others, any slots."""
        count = (added - 2) // (n // k) + 2  # at most
        numbers = ((start + 1) * k - 1) // n + torch.arange(count, device=device)
        places = (numbers * n // k)[..., None] + torch.arange(-(-n // k), device=device)
        real = places < ((numbers + 1) * n // k)[..., None]  # of a window that is not complete, any tokens
        windows = Windows((places + first + shift[:, None, None]).clamp(0, total - 1), real, forward_pass.kernels)
        index = (torch.arange(k, device=device) - numbers[:, :1]).clamp(0, count - 1)
        keys, values = projection.reduce(windows, near.key, False), projection.reduce(windows, near.value, True)
        return Slots(_take(keys, index), _take(values, index))

    edges = torch.arange(max(dims) + 1, device=device) * n // torch.tensor(dims, device=device)[:, None] + first
    edges = torch.cat([torch.arange(first, device=device).expand(len(dims), -1), edges], dim=1)
    edges = edges + shift[:, None, None]
    is_new = (edges[..., 1:] > kept)[..., None]
    global_columns = (torch.arange(first, device=device) + shift[:, None]).clamp(0, total - 1)
    computed = Slots.for_heads(compute, dims)
    parts = zip(past, near, computed[:2], strict=True)
    slots = (torch.where(is_new, torch.cat([_take(now, global_columns), new], dim=2), old) for old, now, new in parts)
    return KeyValues(*slots), edges


def _take(part: Tensor, positions: Tensor) -> Tensor:
    """Some tokens, or slots, of each text, by heads."""
    return take_positions(part.transpose(1, 2), positions).transpose(1, 2)
