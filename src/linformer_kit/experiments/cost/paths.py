"""The optimised operations of a layer against the plain ones, `kernels.plain()`, on this machine.

No choice of `operator.kernels` should make an operation slower; `linformer bench ceiling` shows whether one does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from linformer_kit.experiments.cost.encoders import VOCAB_SIZE, Encoder, build, random_ids
from linformer_kit.experiments.measure import interleaved
from linformer_kit.experiments.prepare import default_tokens, torch_dtype
from linformer_kit.operator import kernels
from linformer_kit.operator.neighbours import Neighbours
from linformer_kit.settings.bench import CeilingSettings, Mode

_SECONDS = 10.0  # for all runs of one operation in one way
MODES: tuple[Mode, ...] = ("forward", "train")


class Operation(NamedTuple):
    """A function without arguments, and the tensors whose gradients a training computes."""

    run: Callable[[], Tensor]
    trained: list[Tensor]


def compare_with_plain(settings: CeilingSettings, n: int, k: int, device: torch.device) -> list[dict[str, Any]]:
    """Time each operation with the optimised kernels and with plain ones, alternately.

    Args:
        settings: Widths, data type, window, repetitions and seed.
        n: Length of a sequence.
        k: Number of slots.
        device: Device to measure.

    Returns:
        For each operation and mode `operation`, `mode`, `seconds`, `plain_s` (medians) and `ratio`, the plain time over
        the other.
    """
    torch.manual_seed(settings.seed)
    batch = max(1, default_tokens(settings.tokens, device) // n)
    found = operations(settings, n, k, batch, device)
    rows = []
    with tqdm(total=len(found) * len(MODES), unit="operation", dynamic_ncols=True) as bar:
        for name, operation in found.items():
            bar.set_description(f"{name}, with and without kernels")
            for mode in MODES:
                step = _step(operation, mode)
                timings = interleaved(
                    {"ours": step, "plain": _plain(step)},
                    device=device,
                    repetitions=settings.repetitions,
                    seconds=_SECONDS,
                )
                ours, plain = (statistics.median(timings[way]) for way in ("ours", "plain"))
                rows.append({"operation": name, "mode": mode, "seconds": ours, "plain_s": plain, "ratio": plain / ours})
                bar.update()
    return rows


def operations(settings: CeilingSettings, n: int, k: int, batch: int, device: torch.device) -> dict[str, Operation]:
    """The operations of a layer, with random inputs."""
    d, heads, dtype = settings.hidden_size, settings.num_attention_heads, torch_dtype(settings)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape).to(device, dtype).requires_grad_()

    x, matrix = random(batch, n, d), random(k, n)
    up, down, square = (
        nn.Linear(*shape, device=device, dtype=dtype)
        for shape in ((d, settings.intermediate_size), (settings.intermediate_size, d), (d, d))
    )
    query, key, value = (random(batch, heads, rows, d // heads) for rows in (n, k, k))
    near_key, near_value = (random(batch, heads, n, d // heads) for _ in range(2))
    neighbours = Neighbours(near_key, near_value, settings.sliding_window, query_len=n)
    model = build(Encoder(kind="linformer", seq_len=n, layers=1, projected_dim=k), settings, device)
    ids = random_ids(batch, n, VOCAB_SIZE, settings.seed, device)
    return {
        "product with a weight": Operation(lambda: kernels.apply_linear(square, x), [x, *square.parameters()]),
        "feed-forward part": Operation(
            lambda: kernels.apply_feed_forward(up, down, x), [x, *up.parameters(), *down.parameters()]
        ),
        "E·X": Operation(lambda: kernels.compress(matrix, x), [matrix, x]),
        "attention to slots": Operation(lambda: kernels.attention(query, key, value), [query, key, value]),
        "attention to slots and neighbours": Operation(
            lambda: kernels.attention_with_neighbours(query, key, value, None, neighbours),
            [query, key, value, near_key, near_value],
        ),
        "whole layer": Operation(lambda: model(ids).last_hidden_state, [*model.get_submodule("encoder").parameters()]),
    }


def _step(operation: Operation, mode: Mode) -> Callable[[], object]:
    if mode == "forward":
        return torch.inference_mode()(operation.run)

    def step() -> object:
        output = operation.run()
        return torch.autograd.grad(output, operation.trained, torch.ones_like(output))

    return step


def _plain(step: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        with kernels.plain():
            return step()

    return run
