"""Time and memory of encoders, linearised or with exact windows, beside their originals and pieces of 512 tokens.

Random weights and tokens: BERT with MiniLM's sizes, ModernBERT base (windows of 129 tokens in two of three layers) and
EmbeddingGemma (of 1,023 tokens in five of six). `original` computes attention by scaled_dot_product_attention, `pieces`
is the same in sequences of 512, `exact_windows` runs layers with a window in blocks, `optimized` has fast products too
(`lk.optimize`), `linearised` is `linearize` with its defaults. All alternate in one run.

    python -m reproduce.linearised --device cuda
    python -m reproduce.linearised --architectures modernbert --ways original exact_windows optimized linearised \
        --lengths 512 2048 8192 --batch_tokens 512 --dtype float32              # one text, some minutes on 2 cores
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal, NamedTuple

import pandas
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import (
    BertConfig,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
)

from linformer_cli.settings.declare import Count, Counts, Machine, Measurement, settings
from linformer_kit.analysis.measure import Mode, dtype_of, in_fresh_process, interleaved, peak_bytes, runner, summary
from linformer_kit.linearized.linearize import linearize, optimize
from linformer_kit.report.environment import device_of
from reproduce.common import NAMES, Record, Results, ScriptSettings, markdown, run

PIECE = 512  # tokens
Architecture = Literal["minilm", "modernbert", "embeddinggemma"]
Way = Literal["original", "pieces", "exact_windows", "optimized", "linearised"]
EXACT: tuple[Way, ...] = ("exact_windows", "optimized")  # their outputs are those of the original


@settings
class Settings(ScriptSettings):
    """Measure encoders of other architectures, linearised or with exact windows."""

    architectures: Measurement[list[Architecture]] = field(default_factory=lambda: ["minilm", "modernbert"])
    """BERT of MiniLM's sizes (6 layers, 384 wide), ModernBERT base (22 layers, 768 wide), EmbeddingGemma (24, 768
    wide)."""
    ways: Measurement[list[Way]] = field(default_factory=lambda: ["original", "pieces", "linearised"])
    """Ways to compute the encoder."""
    modes: Measurement[list[Mode]] = field(default_factory=lambda: ["forward", "train"])
    """A forward pass, and forward and backward as in training (train)."""
    lengths: Measurement[Counts] = field(default_factory=lambda: [512, 1024, 2048, 4096, 8192, 16384])
    """Values of n in tokens; multiples of 512."""
    batch_tokens: Measurement[Count] = 65536
    """Tokens in a batch, at least one sequence."""
    repetitions: Measurement[Count] = 5
    """Number of timed runs of each encoder at each length."""
    seconds: Measurement[Count] = 10
    """Time limit for all timed runs of one encoder at one length."""
    memory: Measurement[bool] = True
    """Measure memory, in one more run of each."""
    device: Machine[str] = "cpu"
    """Device to measure: `cpu` or `cuda`."""
    dtype: Machine[Literal["auto", "float32", "bfloat16", "float16"]] = "auto"
    """Data type of weights and activations; `auto`: bfloat16, or float32 on a CPU without instructions for it."""


def build(architecture: Architecture, way: Way, n: int, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """An encoder with random weights that reads n tokens, without dropout."""
    with device:
        model = copy.deepcopy(original(architecture, n))
    if way == "exact_windows":
        model.set_attn_implementation("exact_windows")
    elif way == "linearised":
        model = linearize(model)
    elif way == "optimized":
        model = optimize(model)
    return model.to(device, dtype)


@functools.lru_cache(maxsize=1)  # random weights of a model of base size take seconds
def original(architecture: Architecture, n: int) -> PreTrainedModel:
    """A model of transformers, the same at each call."""
    torch.manual_seed(0)
    if architecture == "modernbert":
        return ModernBertModel(ModernBertConfig(max_position_embeddings=n))
    if architecture == "minilm":
        sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertModel(BertConfig(**sizes, **none, max_position_embeddings=n), add_pooling_layer=False)
    sizes = {"hidden_size": 768, "num_hidden_layers": 24, "num_attention_heads": 3, "intermediate_size": 1152}
    heads = {"num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256}
    window = {"sliding_window": 512, "use_bidirectional_attention": True, "use_cache": False}
    return Gemma3TextModel(Gemma3TextConfig(**sizes, **heads, **window, vocab_size=1000, max_position_embeddings=n))


def measure(settings: Settings, results: Results) -> None:
    """Add a record for each encoder, length and mode."""
    device = device_of(settings.device)
    dtype = dtype_of(settings.dtype, device)
    cases = list(itertools.product(settings.lengths, settings.architectures, settings.modes))
    for n, architecture, mode in tqdm(cases, desc="encoders"):
        case = Case(architecture, mode, n, max(1, settings.batch_tokens // n), device, getattr(torch, dtype))
        key = {"architecture": architecture, "mode": mode, "n": n}
        missing = [way for way in settings.ways if results.find(**key, way=way) is None]
        outputs: dict[Way, Any] = {}
        runs = {way: case.prepared(way, outputs) for way in missing}
        timings = interleaved(runs, device=device, repetitions=settings.repetitions, seconds=settings.seconds)
        del runs  # the models
        for way, taken in timings.items():
            record = {"batch": case.batch, "dtype": dtype, **summary(taken), **difference(way, outputs)}
            if settings.memory:
                fresh = device.type == "cpu"
                record["peak_bytes"] = in_fresh_process(Case.peak, case, way) if fresh else case.peak(way)
            results.add(**key, way=way, **record)


class Case(NamedTuple):
    """One architecture at one length, in one mode."""

    architecture: Architecture
    mode: Mode
    n: int
    batch: int
    device: torch.device
    dtype: torch.dtype

    def prepared(self, way: Way, outputs: dict[Way, Any]) -> Callable[[], object]:
        """A function for one run of an encoder, which also keeps the output of a forward pass."""
        step = runner(self.model(way), self.ids(way), self.mode)
        if self.mode == "train" or way not in ("original", *EXACT):
            return step
        return lambda: outputs.update({way: step()})

    def model(self, way: Way) -> PreTrainedModel:
        """The encoder."""
        return build(self.architecture, way, self.n, self.device, self.dtype).train(self.mode == "train")

    def ids(self, way: Way) -> Tensor:
        """Random tokens, `[batch, n]`, or pieces of them."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(5, 1000, (self.batch, self.n), generator=generator).to(self.device)
        return ids.view(-1, PIECE) if way == "pieces" else ids

    def peak(self, way: Way) -> int:
        """Peak bytes of one run beyond weights, after one of 64 tokens that initialises libraries."""
        model, ids = self.model(way), self.ids(way)
        runner(model, ids[:1, :64], self.mode)()
        return peak_bytes(runner(model, ids, self.mode), self.device)


def difference(way: Way, outputs: dict[Way, Any]) -> Record:
    """Largest difference of the outputs of an exact way from those of the original, and the largest of those."""
    expected = outputs.get("original")
    if way not in EXACT or way not in outputs or expected is None:
        return {}
    return {"difference": float((outputs[way] - expected).abs().max()), "largest": float(expected.abs().max())}


def table(content: Record) -> str:
    """Time, speed, peak memory and differences of outputs, by length."""
    settings, frame = content["settings"], pandas.DataFrame(content["records"]).replace({"way": NAMES})
    keys = ["architecture", "mode", "n"]
    frame["token"] = frame["median_s"] / (frame["batch"] * frame["n"]) * 1e6
    if "ways" in settings:  # not in results from before it
        of_original = frame[frame["way"] == "original"].set_index(keys)["median_s"]
        frame["speed"] = frame.set_index(keys).index.map(of_original).to_numpy() / frame["median_s"]
    one = bool((frame["batch"] == 1).all())
    tokens = "one text" if one else f"{settings['batch_tokens']:,} tokens"
    beside = ", beside a process that keeps a core busy" if settings.get("busy") else ""  # started by hand
    parts = [
        f"""# Linearised encoders beside their originals, {frame["dtype"].iloc[0]}

Batches of {tokens}, medians of up to {settings["repetitions"]} runs,
all ways of one length in turn{beside}; random weights and tokens, embeddings included."""
    ]
    columns = (
        ("median_s", "seconds for a text", "{:,.3f}", 1) if one else ("token", "µs for a token", "{:,.3f}", 1),
        ("speed", "times as fast as the original", "{:.2f}", 1),
        ("peak_bytes", "peak of a batch in MiB", "{:,.0f}", 2**20),
        ("difference", "largest difference of an output from the original's", "{:.1e}", 1),
    )
    for (architecture, mode), part in frame.groupby(["architecture", "mode"], sort=False):
        for name, what, form, unit in columns:
            if name in part and part[name].notna().any():
                values = part[part[name].notna()].assign(**{name: part[name] / unit})
                grid = values.pivot_table(index="way", columns="n", values=name, sort=False)
                shown = grid.map(form.format).rename(columns="n {:,}".format).reset_index()
                parts.append(f"## {architecture}, {mode}: {what}\n\n{markdown(shown)}")
    return "\n\n".join(parts)


if __name__ == "__main__":
    run(Settings, measure, table)
