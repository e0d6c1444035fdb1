"""The machine's limits: best rate of matrix products, copy bandwidth, and a layer's products alone.

`linformer bench ceiling` measures and writes them; other measurements are reported as shares of these limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from linformer_kit.experiments.experiment import Experiment
from linformer_kit.experiments.measure import Timings, interleaved
from linformer_kit.experiments.prepare import check, default_tokens, pairs, torch_dtype, with_dtype
from linformer_kit.operator.kernels import Processor, has_onednn
from linformer_kit.report.ceiling import write_ceiling_report
from linformer_kit.settings import portable
from linformer_kit.settings.bench import BenchSettings, CeilingSettings, RateSettings

_SCORE_BYTES = 512 * 2**20  # larger scores are computed in blocks
_SECONDS = 5.0  # for all runs of one product

Linear = Callable[[Tensor, Tensor, Tensor], Tensor]  # rows, weight, memory for the result


def main(settings: CeilingSettings) -> None:
    """Measure, write and print."""
    device = check(settings)
    settings = with_dtype(settings, device)
    by_length = pairs(settings.lengths, settings.projected_dims)
    with Experiment(
        "bench ceiling",
        settings.output_dir,
        device=device,
        settings=portable(settings),
        write=write_ceiling_report,
    ) as experiment:
        experiment.results["choices"] = choices(device)
        experiment.results |= measure_ceiling(settings, by_length, device)
        experiment.save()
    experiment.show()


def choices(device: torch.device) -> dict[str, list[dict[str, str]]]:
    """For each number format the implementations that a layer uses on this machine, and why; on CPUs only."""
    if device.type != "cpu":
        return {}
    formats = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return {name: [choice._asdict() for choice in Processor.here().choices(dtype)] for name, dtype in formats.items()}


def measure_ceiling(settings: CeilingSettings, by_length: dict[int, list[int]], device: torch.device) -> dict[str, Any]:
    """Measure the rates of the machine, and of the products of a layer for each n and k."""
    tokens = default_tokens(settings.tokens, device)
    cells = [(n, k) for n, dims in by_length.items() for k in dims]
    layers = []
    with tqdm(total=1 + len(cells), unit="measurement", dynamic_ncols=True, desc="best rates") as bar:
        rates = machine_rates(settings, device)
        for n, k in cells:
            bar.update()
            bar.set_description(f"n {n:,}, k {k:,}")
            batch = max(1, tokens // n)
            products = layer_products(n, k, batch, settings=settings, device=device)
            timings = interleaved(
                {name: product.run for name, product in products.items()},
                device=device,
                repetitions=settings.repetitions,
                seconds=_SECONDS,
            )
            layers.append({"seq_len": n, "projected_dim": k, "batch": batch, **products_summary(products, timings)})
        bar.update()
    return {**rates, "layers": layers}


def machine_rates(settings: RateSettings, device: torch.device) -> dict[str, Any]:
    """Measure the best rate of a large square product and of a copy.

    Args:
        settings: Data type, sizes and seed.
        device: Device to measure.

    Returns:
        `gemm`: the best `flop_per_second`, its function `by`, and the rates of `each`; `copy`: `bytes_per_second`, read
        and written, and the size.
    """
    dtype = torch_dtype(settings)
    size = settings.square or (4096 if device.type == "cpu" else 8192)
    torch.manual_seed(settings.seed)
    left, right = (_random(size, size, device=device, dtype=dtype) for _ in range(2))
    source = torch.ones(settings.copy_mib * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    kinds = linear_functions(device, dtype)
    cases: dict[str, Callable[[], object]] = {name: _product(run, left, right) for name, run in kinds.items()}
    timings = interleaved({**cases, "copy": lambda: target.copy_(source)}, device=device)
    rates = {name: 2 * size**3 / min(timings[name]) for name in kinds}
    best = max(rates, key=lambda name: rates[name])
    return {
        "gemm": {"square": size, "by": best, "flop_per_second": rates[best], "each": rates},
        "copy": {"bytes": source.numel(), "bytes_per_second": 2 * source.numel() / min(timings["copy"])},
    }


def linear_functions(device: torch.device, dtype: torch.dtype) -> dict[str, Linear]:
    """Implementations of the product with a weight: torch's, and oneDNN's if torch uses another library."""
    functions: dict[str, Linear] = {"torch": _torch_linear}
    if device.type == "cpu" and dtype == torch.float32 and has_onednn():
        functions["oneDNN"] = _onednn_linear
    return functions


def _torch_linear(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return torch.mm(x, weight.T, out=target)


def _onednn_linear(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The product by oneDNN, which always allocates its result; `target` is unused."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def _product(run: Linear, left: Tensor, weight: Tensor) -> Callable[[], object]:
    """A product into preallocated memory, since allocation can take as long as the product."""
    target = left.new_empty(len(left), len(weight))
    return torch.no_grad()(lambda: run(left, weight, target))


class Product(NamedTuple):
    """A product of a layer: a function that runs it, its count in a layer, operations of one, and what it computes."""

    run: Callable[[], object]
    times: int
    flop: int
    of: str


def layer_products(
    seq_len: int, projected_dim: int, batch: int, *, settings: BenchSettings, device: torch.device
) -> dict[str, Product]:
    """The matrix products of one Linformer layer alone, at their shapes in the layer.

    Args:
        seq_len: n.
        projected_dim: k.
        batch: Number of sequences.
        settings: Widths, data type and seed.
        device: Device to run on.

    Returns:
        The products by name; `products_summary` adds up their times.
    """
    tokens = token_products(seq_len, batch, settings=settings, device=device)
    return tokens | slot_products(seq_len, projected_dim, batch, settings=settings, device=device)


def token_products(seq_len: int, batch: int, *, settings: BenchSettings, device: torch.device) -> dict[str, Product]:
    """The products of `layer_products` that do not depend on k."""
    d, f, dtype = settings.hidden_size, settings.intermediate_size, torch_dtype(settings)
    x = _random(batch * seq_len, d, device=device, dtype=dtype)
    square, up, down = (_random(*shape, device=device, dtype=dtype) for shape in ((d, d), (f, d), (d, f)))
    wide = _random(batch * seq_len, f, device=device, dtype=dtype)
    return {
        **_dense("query, output", x, square, 2),
        **_dense("feed-forward 1", x, up, 1),
        **_dense("feed-forward 2", wide, down, 1),
    }


def slot_products(
    seq_len: int, projected_dim: int, batch: int, *, settings: BenchSettings, device: torch.device
) -> dict[str, Product]:
    """The products of `layer_products` that depend on k; scores and context in blocks if the scores are large."""
    dtype, n, k = torch_dtype(settings), seq_len, projected_dim
    d, heads = settings.hidden_size, settings.num_attention_heads
    matrix, x = _random(k, n, device=device, dtype=dtype), _random(batch, n, d, device=device, dtype=dtype)
    slots, weight = (_random(rows, d, device=device, dtype=dtype) for rows in (batch * k, d))
    query, key = (_random(batch * heads, rows, d // heads, device=device, dtype=dtype) for rows in (n, k))
    alone = _compressions(matrix, x) | _attention_products(query, key)
    products = {name: Product(run, 1, 2 * batch * n * k * d, name.partition(" (")[0]) for name, run in alone.items()}
    return _dense("key, value", slots, weight, 2) | products


def _compressions(
    matrix: Float[Tensor, "slots seq_len"], x: Float[Tensor, "batch seq_len embed"]
) -> dict[str, Callable[[], object]]:
    """E·X of all sequences, by each implementation."""
    target = x.new_empty(len(x), len(matrix), x.shape[-1])
    batched = torch.no_grad()(lambda: torch.bmm(matrix.expand(len(x), -1, -1), x, out=target))
    others = {kind: run for kind, run in linear_functions(x.device, x.dtype).items() if kind != "torch"}
    one_by_one = {
        f"E @ X ({kind})": torch.no_grad()(lambda run=run: [run(matrix, rows.T, target[0]) for rows in x])
        for kind, run in others.items()
    }
    return {"E @ X (torch)": batched, **one_by_one}


def _dense(
    name: str, x: Float[Tensor, "rows inputs"], weight: Float[Tensor, "outputs inputs"], count: int
) -> dict[str, Product]:
    """A product with a weight, by each implementation."""
    flop = 2 * x.numel() * weight.shape[0]
    functions = linear_functions(x.device, x.dtype)
    return {f"{name} ({kind})": Product(_product(run, x, weight), count, flop, name) for kind, run in functions.items()}


def _random(*shape: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, device=device, dtype=dtype).normal_()


def _attention_products(
    query: Float[Tensor, "batch_heads seq_len head_dim"], key: Float[Tensor, "batch_heads slots head_dim"]
) -> dict[str, Callable[[], object]]:
    """Scores and context of all heads of a batch; numbers do not affect the time, so keys serve as values too."""
    all_heads, n, _ = query.shape
    block = max(1, min(all_heads, _SCORE_BYTES // (n * key.shape[1] * query.element_size())))
    scores = torch.rand(block, n, key.shape[1], device=query.device).to(query.dtype)
    context = torch.empty_like(query[:block])
    columns = key.transpose(1, 2).contiguous()

    def run_scores() -> None:
        for start in range(0, all_heads, block):
            q, k = query[start : start + block], columns[start : start + block]
            torch.bmm(q, k, out=scores[: len(q)])

    def run_context() -> None:
        for start in range(0, all_heads, block):
            v = key[start : start + block]
            torch.bmm(scores[: len(v)], v, out=context[: len(v)])

    return {"scores": run_scores, "context": run_context}


def products_summary(products: dict[str, Product], timings: Timings) -> dict[str, Any]:
    """Minimum time of the products of one layer: the fastest run of the fastest implementation of each.

    Returns:
        `products_s`, the sum, and `products`: the `seconds`, `flop` and fastest implementation (`by`) of each.
    """
    best: dict[str, dict[str, Any]] = {}
    for name, product in products.items():
        seconds = product.times * min(timings[name])
        if product.of not in best or seconds < best[product.of]["seconds"]:
            best[product.of] = {"seconds": seconds, "flop": product.times * product.flop, "by": name}
    return {"products_s": sum(product["seconds"] for product in best.values()), "products": best}
