"""The type checker of `--jaxtyping-packages`: shapes and types of arrays, in every function of the package that declares them.

Other annotations are left out: tests hand over what is wrong to see it rejected, and stand-ins for what is expensive.
Other functions stay as they are, and nothing is checked while torch.compile traces: it cannot trace the check.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from inspect import isclass, isfunction
from typing import Any, get_args

import jaxtyping
import torch
from beartype import beartype
from jaxtyping import AbstractArray

_ARRAY = re.compile(r"\b(Bool|Complex|Float|Inexact|Int|Integer|Key|Num|Real|Shaped|UInt)\d*\[")


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that checks its arrays."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if _has_array(hint)}
    return beartype(function)


def _has_array(hint: Any) -> bool:
    return (isclass(hint) and issubclass(hint, AbstractArray)) or any(map(_has_array, get_args(hint)))


def _jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
    """`jaxtyping.jaxtyped`, which the hook puts on everything, for functions that name an array."""

    def decorated(kind: Any) -> Any:
        if (
            torch.compiler.is_compiling()
            or not isfunction(kind)
            or not any(map(_ARRAY.search, map(str, kind.__annotations__.values())))
        ):
            return kind
        _CHECKED[kind] = _everything(kind, typechecker=typechecker)

        @functools.wraps(kind)
        def checked_unless_compiled(*arguments: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():
                return kind(*arguments, **named)
            return _CHECKED[kind](*arguments, **named)

        return checked_unless_compiled

    return decorated


_CHECKED: dict[Any, Callable[..., Any]] = {}
_everything = jaxtyping.jaxtyped
jaxtyping.jaxtyped = _jaxtyped
