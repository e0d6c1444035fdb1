"""The processes of a test, on gloo: forked from one that has imported the slow modules."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch

_IMPORTED = [
    "linformer_kit.training.pretrain",
    "pytest",
]


def run_processes(count: int, function: Callable[..., None], *arguments: Any) -> None:
    """The function, of rank and arguments, in so many processes; what one of them raises fails the test."""
    multiprocessing.set_forkserver_preload(_IMPORTED)
    torch.multiprocessing.start_processes(_start, (function, arguments), nprocs=count, start_method="forkserver")


def _start(rank: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    multiprocessing.set_start_method(None, force=True)  # else data workers come from a server too, one without imports
    function(rank, *arguments)
