"""The processes of a test, on gloo: forked from one that has imported the slow modules."""

from __future__ import annotations

import multiprocessing
import os
import socket
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
    given = (count, free_port(), function, arguments)
    torch.multiprocessing.start_processes(_start, given, nprocs=count, start_method="forkserver")


def _start(rank: int, count: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    multiprocessing.set_start_method(None, force=True)  # else data workers come from a server too, one without imports
    os.environ |= rank_environment(rank, count, port)
    function(rank, *arguments)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def rank_environment(rank: int, count: int, port: int) -> dict[str, str]:
    """The environment that torchrun gives to a process."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    return {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"}
