"""Projections of n positions to k slots, and their sharing over layers and heads (section 4 of the paper).

A projection is called with the tokens of keys and values, mapped by W_K and W_V or not: `attention` chooses the order
of the two products, since E·(X·W) and (E·X)·W are equal, but their cost is very different.
To add a projection, add a class (docs/operator.md has an example), a line in `PROJECTIONS`, and its name to
`Projection` in `linformer_cli/settings/model.py`.

    FullAttention          E = F = identity
    LinearProjection       E and F are learned
    RandomProjection       E = F = R, Gaussian and fixed
    MeanPoolProjection     means over k windows
    MaxPoolProjection      maxima over k windows
    ConvProjection         k windows with a learned kernel for each dimension of a head
    DynamicProjection      E = F = a softmax over the positions

    base       the base class, full attention     sizes     numbers of slots, other sequence lengths
    matrices   linear, random, dynamic, and       windows   means, maxima, learned kernels
               how learned E and F start

Axes as in `slots`.
"""

from __future__ import annotations

from typing import Any

from linformer_cli.settings import SlotSettings
from linformer_kit.operator.projections.base import (
    Compressed,
    FullAttention,
    SequenceProjection,
    SharedProjection,
    Tokens,
    bind_replica,
    inside,
)
from linformer_kit.operator.projections.matrices import (
    DynamicProjection,
    LinearProjection,
    MatrixProjection,
    RandomProjection,
)
from linformer_kit.operator.projections.windows import (
    ConvProjection,
    MaxPoolProjection,
    MeanPoolProjection,
    WindowProjection,
)

PROJECTIONS: dict[str, type[SequenceProjection]] = {
    "linear": LinearProjection,
    "mean_pool": MeanPoolProjection,
    "max_pool": MaxPoolProjection,
    "conv": ConvProjection,
    "random": RandomProjection,
    "dynamic": DynamicProjection,
}


def build_projection(
    settings: SlotSettings, seq_len: int | None, projected_dim: Any, num_heads: int, head_dim: int
) -> SequenceProjection:
    """Build the projection that settings name, for the heads of a layer or, shared, of all layers.

    Raises:
        InputError: for invalid arguments of the projection.
    """
    return PROJECTIONS[settings.projection](
        seq_len,
        projected_dim,
        num_heads=num_heads,
        sharing=settings.sharing,
        shorter_input=settings.shorter_input,
        head_dim=head_dim,
        initializer=settings.projection_initializer,
    )
