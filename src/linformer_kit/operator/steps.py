"""Causal attention of texts that go on: of the tokens before, a constant number of keys and values is kept.

These are g + k slots, of which the first are global tokens, and as neighbours the last w tokens, right-aligned. The
slots of windows with new tokens are computed again, and hidden until their window is complete. With full attention all
tokens are kept.

Axes as in `slots`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from linformer_cli.errors import InputError, check_input
from linformer_kit.operator.attention import ProjectedAttention
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.operator.padding import last_tokens, take_positions
from linformer_kit.operator.projections.windows import WindowProjection, Windows
from linformer_kit.operator.slots import ForwardPass, Slots


def keep(layer: ProjectedAttention, slots: Slots, run: ForwardPass) -> Slots:
    """What is kept of the slots of a layer in a forward pass: copies, so that the rest can be freed."""
    near = slots.neighbours or slots  # without neighbours each token is a slot
    lengths = run.lengths if slots.neighbours is None else slots.neighbours.lengths
    window = near.key.shape[2] if layer.is_full else layer.sliding_window
    keys, values = (last_tokens(part.transpose(1, 2), lengths, window).transpose(1, 2) for part in near[:2])
    if layer.is_full:
        return Slots(keys, values)
    *_, dims = layer.checked_projection()
    missing = (0, 0, 0, layer.global_tokens + max(dims) - slots.key.shape[2])
    near = Neighbours(keys, values, window)
    return Slots(F.pad(slots.key, missing), F.pad(slots.value, missing), neighbours=near)


def next_slots(
    layer: ProjectedAttention, hidden: Float[Tensor, "batch seq_len embed"], past: Slots, run: ForwardPass
) -> Slots:
    """The slots for the queries of tokens that follow those of which `past` was kept.

    Args:
        layer: The layer.
        hidden: Input of the keys and values of the new tokens, right-padded.
        past: What was kept before.
        run: The forward pass, with the number of tokens `before` these.

    Raises:
        InputError: for a projection inside another module, another k than before, and another number format.
    """
    assert run.before is not None
    near, device, added = past.neighbours or past, hidden.device, hidden.shape[1]
    new = torch.full_like(run.before, added) if run.lengths is None else run.lengths
    kept, total = near.key.shape[2], near.key.shape[2] + added
    mapped = layer.map_tokens(hidden, None, run.kernels)
    check_input(near.key.dtype == mapped[0].dtype, "past_key_values", f"those of {mapped[0].dtype}", near.key.dtype)
    key, value = (torch.cat(parts, dim=2) for parts in zip(near[:2], mapped, strict=True))
    shift = kept - run.before  # from the number of a token in its text to its column
    window = total if layer.is_full else kept
    seen = Neighbours(key, value, window, kept + new, first=kept, is_causal=True, starts=shift.clamp(min=0))
    if layer.is_full:
        return Slots(key[:, :, :0], value[:, :, :0], neighbours=seen)

    (projection, _, dims), first = layer.checked_projection(), layer.global_tokens
    if not isinstance(projection, WindowProjection):
        expected = "no module around it to continue texts (merge adapters first)"
        raise InputError(f"projection: expected {expected}, got {type(projection).__name__}")
    check_input(past.key.shape[2] == first + max(dims), "projected_dim", "as before, to continue texts", max(dims))
    n = projection.seq_len
    start = (run.before - first)[:, None]

    def taken(part: Tensor, positions: Tensor) -> Tensor:
        return take_positions(part.transpose(1, 2), positions).transpose(1, 2)

    def of_windows(k: int) -> Slots:
        """The slots of windows with new tokens; in the place of others, any slots."""
        count = (added - 2) // (n // k) + 2  # at most
        numbers = ((start + 1) * k - 1) // n + torch.arange(count, device=device)
        places = (numbers * n // k)[..., None] + torch.arange(-(-n // k), device=device)
        real = places < ((numbers + 1) * n // k)[..., None]  # of a window that is not complete, any tokens
        windows = Windows((places + first + shift[:, None, None]).clamp(0, total - 1), real, run.kernels)
        index = (torch.arange(k, device=device) - numbers[:, :1]).clamp(0, count - 1)
        of_keys, of_values = projection.reduce(windows, key, False), projection.reduce(windows, value, True)
        return Slots(taken(of_keys, index), taken(of_values, index))

    edges = torch.arange(max(dims) + 1, device=device) * n // torch.tensor(dims, device=device)[:, None] + first
    edges = torch.cat([torch.arange(first, device=device).expand(len(dims), -1), edges], dim=1)
    edges = edges + shift[:, None, None]
    is_new = (edges[..., 1:] > kept)[..., None]
    of_first = (torch.arange(first, device=device) + shift[:, None]).clamp(0, total - 1)

    def replaced(old: Tensor, tokens: Tensor, slots: Tensor) -> Tensor:
        return torch.where(is_new, torch.cat([taken(tokens, of_first), slots], dim=2), old)

    slots = Slots.for_heads(of_windows, dims)
    keys, values = replaced(past.key, key, slots.key), replaced(past.value, value, slots.value)
    return Slots(keys, values, neighbours=seen._replace(edges=edges))
