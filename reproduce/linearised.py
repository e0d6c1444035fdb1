"""Time and memory of encoders of other architectures, linearised, beside their originals and pieces of 512 tokens.

BERT with MiniLM's sizes and ModernBERT base, random weights and tokens. The original reads n tokens with its own
attention (scaled_dot_product_attention; two of three layers of ModernBERT are local already); `pieces` is the original
on the same tokens in sequences of 512; `linearised` is `linearize` with its defaults. All alternate in one run.

    python -m reproduce.linearised --device cuda
    python -m reproduce.linearised --lengths 512 4096 --batch_tokens 4096       # some minutes on 2 cores

Result: benchmarks/linearised_h100_202611. Text: none, random tokens.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

import pandas
import torch
from matplotlib.figure import Figure
from torch import nn
from tqdm import tqdm
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel

from linformer_cli.settings.declare import Count, Counts, Machine, Measurement, settings
from linformer_kit.analysis.measure import Mode, dtype_of, interleaved, peak_bytes, runner, summary
from linformer_kit.environment import device_of
from linformer_kit.linearized.linearize import linearize
from reproduce.common import Record, Results, ScriptSettings, length_axis, markdown, new_panels, run

PIECE = 512  # tokens
SECONDS = 10.0  # for all timed runs of one encoder at one length
Architecture = Literal["minilm", "modernbert"]
WAYS = ("original", "pieces", "linearised")


@settings
class Settings(ScriptSettings):
    """Measure encoders of other architectures, linearised."""

    # BERT of MiniLM's sizes (6 layers, 384 wide), and ModernBERT base (22 layers, 768 wide).
    architectures: Measurement[list[Architecture]] = field(default_factory=lambda: ["minilm", "modernbert"])
    # A forward pass, and forward and backward as in training (train).
    modes: Measurement[list[Mode]] = field(default_factory=lambda: ["forward", "train"])
    # Values of n in tokens; multiples of 512.
    lengths: Measurement[Counts] = field(default_factory=lambda: [512, 1024, 2048, 4096, 8192, 16384])
    batch_tokens: Measurement[Count] = 65536  # Tokens in a batch.
    repetitions: Measurement[Count] = 5  # Number of timed runs of each encoder at each length.
    device: Machine[str] = "cpu"  # Device to measure: `cpu` or `cuda`.
    # Data type of weights and activations; `auto`: bfloat16, or float32 on a CPU without instructions for it.
    dtype: Machine[Literal["auto", "float32", "bfloat16", "float16"]] = "auto"


def build(architecture: Architecture, way: str, n: int, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """An encoder with random weights that reads n tokens, without dropout."""
    with device:
        if architecture == "minilm":
            sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
            none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            model = BertModel(BertConfig(**sizes, **none, max_position_embeddings=n), add_pooling_layer=False)
        else:
            model = ModernBertModel(ModernBertConfig(max_position_embeddings=n))
    return (linearize(model) if way == "linearised" else model).to(device, dtype)


def measure(settings: Settings, results: Results) -> None:
    """Add a record for each encoder, length and mode."""
    device = device_of(settings.device)
    dtype = dtype_of(settings.dtype, device)
    for n in tqdm(settings.lengths, desc="lengths"):
        shape = (max(1, settings.batch_tokens // n), n)
        ids = torch.randint(5, 1000, shape, generator=torch.Generator().manual_seed(0)).to(device)
        for architecture in settings.architectures:
            for mode in settings.modes:
                key = {"architecture": architecture, "mode": mode, "n": n}
                runs = {
                    way: runner(
                        build(architecture, way, n, device, getattr(torch, dtype)).train(mode == "train"),
                        ids.view(-1, PIECE) if way == "pieces" else ids,
                        mode,
                    )
                    for way in WAYS
                    if results.find(**key, way=way) is None
                }
                timings = interleaved(runs, device=device, repetitions=settings.repetitions, seconds=SECONDS)
                for way, taken in timings.items():
                    memory = {} if device.type == "cpu" else {"peak_bytes": peak_bytes(runs[way], device)}
                    results.add(**key, way=way, batch=shape[0], dtype=dtype, **summary(taken), **memory)
                del runs


def frame_of(content: Record) -> pandas.DataFrame:
    """The records with the time of a token in µs."""
    frame = pandas.DataFrame(content["records"])
    return frame.assign(token=frame["median_s"] / (frame["batch"] * frame["n"]) * 1e6)


def table(content: Record) -> str:
    """Time of a token, and peak memory, by length."""
    frame = frame_of(content)
    parts = [
        f"""# Linearised encoders beside their originals, {content["records"][0]["dtype"]}

Batches of {content["settings"]["batch_tokens"]:,} tokens, medians of up to {content["settings"]["repetitions"]} runs,
all ways of one length in turn; random weights and tokens, embeddings included."""
    ]
    for (architecture, mode), part in frame.groupby(["architecture", "mode"], sort=False):
        for name, what, decimals in (("token", "µs for a token", 3), ("peak_bytes", "peak of a batch in MiB", 0)):
            if name in part:
                values = part.assign(**{name: part[name] / (2**20 if name == "peak_bytes" else 1)})
                grid = values.pivot_table(index="way", columns="n", values=name, sort=False)
                shown = grid.map(f"{{:,.{decimals}f}}".format).rename(columns="n {:,}".format).reset_index()
                parts.append(f"## {architecture}, {mode}: {what}\n\n{markdown(shown)}")
    return "\n\n".join(parts)


def draw(content: Record) -> Figure:
    """Time of a token by length, a panel for each architecture and mode."""
    frame = frame_of(content)
    groups = list(frame.groupby(["architecture", "mode"], sort=False))
    figure, panels = new_panels(len(groups), (4.8, 3.8))
    for axes, ((architecture, mode), part) in zip(panels, groups, strict=True):
        for way, line in part.groupby("way", sort=False):
            axes.plot(line["n"], line["token"], "o-", markersize=4, label=way)
        axes.set_title(f"{architecture}, {mode}")
        axes.set_ylabel("µs for a token")
        length_axis(axes, sorted(part["n"].unique()))
        axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
