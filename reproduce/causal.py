"""What causal slots cost beside full attention: training, and texts continued token by token.

A query sees its last `seen` tokens exactly and a mean of each window of `window` tokens before; full attention keeps
the keys and values of all tokens. Random weights and tokens: neither changes the cost.
`reproduce.learning --studies causal-2048` has what both learn.

    python -m reproduce.causal                            # a quarter of an hour on 2 cores
    python -m reproduce.causal --generated 1024 --lengths 512 2048
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import field
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from linformer_cli.settings.declare import Count, Counts, Encoder, Measurement, settings
from linformer_kit import LinformerConfig, LinformerForCausalLM
from linformer_kit.analysis.measure import dtype_of, in_fresh_process, interleaved, peak_bytes, summary
from linformer_kit.models.cache import LinformerCache
from linformer_kit.report.environment import device_of
from linformer_kit.report.figures import show_grid
from reproduce.common import CostSettings, Record, Results, markdown, new_panels, run

WAYS = ("full attention", "causal slots")
SECONDS = 60.0  # for all timed updates of one way


@settings
class Settings(CostSettings):
    """Measure time and memory of causal models."""

    lengths: Measurement[Counts] = field(default_factory=lambda: [512, 2048, 8192])
    """n of the trained sequences."""
    batch_tokens: Measurement[Count] = 8192
    """Tokens of an update."""
    generated: Measurement[Count] = 8192
    """Tokens to continue a text by."""
    step: Measurement[Count] = 1024
    """Tokens between two measurements."""
    window: Encoder[Count] = 16
    """Tokens that a slot stands for."""
    seen: Encoder[Count] = 64
    """w, tokens that a query sees exactly."""
    layers: Encoder[Count] = 4
    """Number of layers."""
    vocab_size: Encoder[Count] = 2048
    """Tokens in the vocabulary."""


def build(settings: Settings, way: str, n: int) -> LinformerForCausalLM:
    """A causal model with random weights, for texts of n tokens."""
    fields: dict[str, Any] = {"attention": "full"}
    if way == "causal slots":
        fields = {"projection": "mean_pool", "projected_dim": -(-n // settings.window)}
        fields |= {"sliding_window": settings.seen, "global_tokens": 1}
    names = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    fields |= {name: getattr(settings, name) for name in names} | {"num_hidden_layers": settings.layers}
    fields |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(0)
    config = LinformerConfig(causal=True, max_position_embeddings=n, **fields)
    device = device_of(settings.device)
    return LinformerForCausalLM(config).to(device, getattr(torch, dtype_of(settings.dtype, device)))


def update(settings: Settings, way: str, n: int) -> functools.partial[None]:
    """A function for forward and backward of an update."""
    model = build(settings, way, n).train()
    ids = torch.randint(settings.vocab_size, (max(1, settings.batch_tokens // n), n), device=model.device)
    return functools.partial(_update, model, ids)


def _update(model: LinformerForCausalLM, ids: Tensor) -> None:
    model(input_ids=ids, labels=ids).loss.backward()
    model.zero_grad(set_to_none=True)


def peak_of(settings: Settings, way: str, n: int) -> int:
    """Peak bytes of an update beyond the weights."""
    return peak_bytes(update(settings, way, n), device_of(settings.device))


@torch.inference_mode()
def continued(settings: Settings, way: str) -> Iterator[tuple[float, int]]:
    """Continue a text; after each `step` tokens their seconds, and the bytes that are kept."""
    model = build(settings, way, settings.generated).eval()
    ids, kept = torch.ones(1, 1, dtype=torch.long, device=model.device), LinformerCache(model.config)
    for _ in range(settings.generated // settings.step):
        start = time.perf_counter()
        for _ in range(settings.step):
            ids = model(input_ids=ids, past_key_values=kept).logits.argmax(-1)
        ids.tolist()  # waits for a device
        yield time.perf_counter() - start, sum(each.nbytes for layer in kept.layers for each in tensors(vars(layer)))


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a container."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors(each)


def measure(settings: Settings, results: Results) -> None:
    """Add a record for each way: of training at each length, and of each step of a text."""
    device = device_of(settings.device)
    for n in settings.lengths:
        if results.find(measured="training", n=n) is None:
            cases = {way: update(settings, way, n) for way in WAYS}
            runs = interleaved(cases, device=device, repetitions=settings.repetitions, seconds=SECONDS)
            for way in WAYS:
                peak = in_fresh_process(peak_of, settings, way, n)
                results.add(measured="training", n=n, way=way, **summary(runs[way]), peak_bytes=peak)
    if results.find(measured="text") is None:
        steps = zip(*(continued(settings, way) for way in WAYS), strict=True)  # in turn
        for number, of_ways in enumerate(list(steps), start=1):
            for way, (seconds, kept) in zip(WAYS, of_ways, strict=True):
                results.add(measured="text", way=way, tokens=number * settings.step, seconds=seconds, kept_bytes=kept)


def rows(content: Record, measured: str) -> list[Record]:
    """The records of a kind."""
    return [record for record in content["records"] if record["measured"] == measured]


def table(content: Record) -> str:
    """Time and memory, as Markdown."""
    settings = content["settings"]
    training = [
        {"n": f"{each['n']:,}", "": each["way"], "an update, s": f"{each['median_s']:.3f}"}
        | {"memory, MiB": f"{each['peak_bytes'] / 2**20:,.0f}"}
        for each in rows(content, "training")
    ]
    text = [
        {
            "tokens": f"{each['tokens']:,}",
            "": each["way"],
            "a token, ms": f"{1e3 * each['seconds'] / settings['step']:.2f}",
        }
        | {"kept, MiB": f"{each['kept_bytes'] / 2**20:.2f}"}
        for each in rows(content, "text")
    ]
    return f"""# What causal slots cost

{settings["layers"]} layers, {settings["hidden_size"]} wide, {settings["num_attention_heads"]} heads, random weights.
Causal slots: the last {settings["seen"]} tokens, the first one, and a mean of each window of {settings["window"]}.

An update of {settings["batch_tokens"]:,} tokens, forward and backward: median time, and peak memory beyond the weights:

{markdown(training)}

One text continued token by token: the mean time of {settings["step"]:,} tokens up to so many, and what is kept of all:

{markdown(text)}"""


def draw(content: Record) -> Figure | None:
    """Time and memory of a continued text by its length."""
    records, step = rows(content, "text"), content["settings"]["step"]
    if not records:
        return None
    figure, panels = new_panels(2, (4.5, 3.4))
    units = (("seconds", 1e3 / step, "time for a token (ms)"), ("kept_bytes", 2**-20, "kept of the text (MiB)"))
    for axes, (name, scale, label) in zip(panels, units, strict=True):
        for way in WAYS:
            of = [(each["tokens"], scale * each[name]) for each in records if each["way"] == way]
            axes.plot(*zip(*of, strict=True), "o-", markersize=3, label=way)
        axes.set(xlabel="tokens of the text", ylabel=label)
        axes.set_ylim(bottom=0)
        show_grid(axes)
        axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
