"""Projections of n positions to k slots, and their sharing over layers and heads (section 4 of the paper).

A projection is called with the tokens of keys and values, mapped by W_K and W_V or not: `attention` chooses the order
of the two products, since E·(X·W) and (E·X)·W are equal, but their cost is very different.
To add a projection of your own, write a class (docs/operator.md has examples) and call `register_projection`; to add
one to the package, a line in `PROJECTIONS`, and its name to `ProjectionName` in `linformer_cli/settings/model.py`.

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

from inspect import isabstract
from typing import Any, get_args

from linformer_cli.errors import InputError, check_input
from linformer_cli.settings import REGISTERED_PROJECTIONS, ProjectionName, SlotSettings
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


def register_projection(name: str, projection: type[SequenceProjection]) -> None:
    """Give a projection class a name for `LinformerConfig(projection=name)`, `linearize` and `LinformerAttention`.

    Register it again before a saved model that has the name is loaded. A second class replaces the first.

    Args:
        name: A word that no projection of this package has.
        projection: The class; its constructor takes the arguments of `SequenceProjection`.

    Raises:
        InputError: for a name of this package, and for a class without a method that its kind needs.
    """
    own = isinstance(name, str) and name.isidentifier() and name not in get_args(ProjectionName)
    check_input(own, "name", "a word that no projection of this package has", name)
    if not (isinstance(projection, type) and issubclass(projection, SequenceProjection)):
        raise InputError(f"projection: expected a subclass of SequenceProjection, got {projection!r}")
    if isabstract(projection):
        missing = " and ".join(f"`{method}`" for method in sorted(projection.__abstractmethods__))
        raise InputError(f"projection: expected a class with the method {missing}, got {projection.__name__}")
    PROJECTIONS[name] = projection
    REGISTERED_PROJECTIONS.add(name)


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
