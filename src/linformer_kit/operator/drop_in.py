"""Compatibility with `torch.nn.MultiheadAttention`: its masks, its state dicts, its layouts."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from linformer_cli.errors import InputError
from linformer_kit.operator.values import has_values, require_in_trace

# Values of an additive mask up to this one mean padding: -1e4, -1e9, the minimum of the dtype, or -inf.
_HIDES = -1e3
_FUSED = ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight")


class NotFused:
    """A value of `in_proj_weight` that makes torch's encoder call the attention instead of its fused kernel."""

    @classmethod
    def __torch_function__(cls, *_: object) -> None:
        raise TypeError("LinformerAttention has no fused weights")


def padding_from_scores(name: str, mask: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Convert an additive mask, 0 at real tokens and -1000 or less at padding, to a padding mask, True where padded.

    Raises:
        InputError: for other numbers, which would hide tokens partly.
    """
    message = (
        f"{name}: expected bool, or floating point of 0 at real tokens and -inf (or at most -1000) at padding, "
        "got other numbers"
    )
    fits = ((mask == 0) | (mask <= _HIDES)).all()
    if not has_values(mask):
        require_in_trace(fits, message)
    elif not fits:
        raise InputError(message)
    return mask != 0


def split_fused_weights(state_dict: dict[str, Any], prefix: str, attention: nn.Module) -> None:
    """Rename the entries of an `nn.MultiheadAttention` in a state dict, in-place, to those of `LinformerAttention`.

    It has no E and F, so those of the module are kept.

    Args:
        state_dict: The state dict to load.
        prefix: Prefix of the attention's entries.
        attention: The module to load into.
    """
    given = {name: state_dict.pop(prefix + name) for name in _FUSED if prefix + name in state_dict}
    if not given:
        return
    if "in_proj_weight" in given:
        weights = given["in_proj_weight"].chunk(3)
    else:
        weights = tuple(given[f"{map_}_proj_weight"] for map_ in "qkv" if f"{map_}_proj_weight" in given)
    biases = given["in_proj_bias"].chunk(3) if given.get("in_proj_bias") is not None else ()
    for kind, parts in (("weight", weights), ("bias", biases)):
        for map_, part in zip("qkv", parts, strict=False):
            state_dict[f"{prefix}{map_}_proj.{kind}"] = part
    for name, tensor in attention.state_dict().items():
        if name.startswith("projection.") and not tensor.is_meta:
            state_dict.setdefault(prefix + name, tensor)


def refuse_other_layout(container: nn.Module, name: str, attention: Any) -> None:
    """Refuse an attention that replaces torch's but has another `batch_first`.

    No other check would find this error: the shapes fit, and samples would be mixed as if they were positions.

    Raises:
        InputError: with the required layout.
    """
    replaced = container._modules.get(name)
    if getattr(replaced, "batch_first", attention.batch_first) != attention.batch_first:
        raise InputError(
            f"{name}: expected batch_first={not attention.batch_first}, as the attention that it replaces in "
            f"{type(container).__name__}, got {attention.batch_first}: create both with the same batch_first"
        )


class Layout:
    """The axis order of the caller's sequences, and the conversion to batch first and back.

    Args:
        batch_first: Whether batches are `[batch, length, embed]` and not `[length, batch, embed]`.
        batched: Whether there is a batch axis.
    """

    def __init__(self, *, batch_first: bool, batched: bool) -> None:
        self.batched = batched
        self.transposed = batched and not batch_first

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, *, batch_first: bool) -> Layout:
        """The layout of the arguments of a call.

        Raises:
            InputError: if some have a batch axis and others have none.
        """
        if len({tensor.dim() for tensor in (query, key, value)}) > 1:
            got = ", ".join(str(list(tensor.shape)) for tensor in (query, key, value))
            raise InputError(f"query, key, value: expected all with a batch or all without, got {got}")
        return cls(batch_first=batch_first, batched=query.dim() != 2)

    def to_batch(self, mask: Any) -> Any:
        """Add a batch axis to a padding mask if there is none; masks have the batch first in both layouts."""
        return mask[None] if isinstance(mask, Tensor) and not self.batched else mask

    def to_batch_first(self, *sequences: Tensor) -> list[Tensor]:
        """Convert to batch first; identical tensors stay identical, so that projections can save work."""
        made: dict[int, Tensor] = {}
        for sequence in sequences:
            if id(sequence) not in made:
                moved = sequence.transpose(0, 1) if self.transposed and sequence.dim() == 3 else sequence
                made[id(sequence)] = moved if self.batched else moved[None]
        return [made[id(sequence)] for sequence in sequences]

    def of_output(self, output: Tensor) -> Tensor:
        """Convert the output to the caller's layout."""
        if self.transposed:
            return output.transpose(0, 1)
        return output if self.batched else output[0]

    def of_batch(self, tensor: Tensor | None) -> Tensor | None:
        """Remove the batch axis if the caller has none; for weights, which have the batch first in both layouts."""
        return tensor if tensor is None or self.batched else tensor[0]


def register_layout_check(kind: type[nn.Module]) -> None:
    """Run `refuse_other_layout` on every assignment of a module of this class to an attribute of another module."""

    def check(container: nn.Module, name: str, submodule: nn.Module | None) -> None:
        submodule = getattr(submodule, "_orig_mod", submodule)  # the module wrapped by `torch.compile`
        if isinstance(submodule, kind):
            refuse_other_layout(container, name, submodule)

    torch.nn.modules.module.register_module_module_registration_hook(check)
