"""A package, so that jaxtyping finds its type checker by name."""

from tests import shapes as shapes
