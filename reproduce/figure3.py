"""Figure 3: validation perplexity of pretraining by k, n and sharing.

The paper (section 5.1): with k of n/4 a Linformer comes near the Transformer (a, b), sharing E and F costs nothing (c),
and the final perplexity does not depend on n for one k (d). It trains 12 layers, 768 wide, for 250,000 updates on 64
GPUs. Here: 4 layers, 128 wide, with the paper's operator; a fifth panel has dynamic slots and exact neighbours. All
begin with one Transformer of n 128, whose positions are interpolated and which is made linear: from a random start,
models of n 512 had hardly left the frequencies of tokens after 9,000 updates.

    python -m reproduce.figure3 --train_file WIKIPEDIA BOOKS

With all defaults some 3 hours on an H100, or 9 minutes for several trainings at once, which MPS lets share it; with
--max_steps 800 --warmup_steps 100, without the Transformers of n 2,048 and 4,096, 3 hours on 2 cores.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from matplotlib.figure import Figure

from linformer_cli.errors import InputError
from linformer_cli.settings.declare import Count, CountOrZero, File, Positive, Seed, Training, settings
from linformer_kit import LinformerForMaskedLM
from linformer_kit.data.tokenizer import load_tokenizer
from linformer_kit.files.writing import whole_folder
from linformer_kit.report.figures import log_ticks, number_ticks, show_grid
from reproduce.common import Record, Results, ScriptSettings, markdown, mean_and_deviation, new_panels, run
from reproduce.learning import draw_line, trained
from reproduce.studies import BASE, DYNAMIC, FULL, SHIFTED, TENTH

_START_LENGTH = 128
_TOKENS = 8192  # in an update
_OF_SLOTS = (
    *("attention", "max_position_embeddings", "projected_dim", "sharing", "projection", "projection_initializer"),
    "sliding_window",
)


class Line(NamedTuple):
    """Models of one kind: their settings, the values of n, and the seeds at n 512; at others the first seed alone."""

    changes: dict[str, Any]
    lengths: tuple[int, ...] = (512,)
    seeds: tuple[int, ...] = (0,)


SHARINGS = ("none", "headwise", "key_value", "layerwise")
POOLING = {"projection_initializer": "pooling"}  # windows are the same for all heads, so that they can share E and F
LINES = {
    "Transformer": Line(FULL, (512, 1024, 2048, 4096), (0, 1, 2)),
    "k 32": Line({"projected_dim": 32}),
    "k 64": Line({"projected_dim": 64}, (512, 1024)),
    "k 128": Line({"projected_dim": 128}, (512, 1024), (0, 1, 2)),
    "k 256": Line({"projected_dim": 256}, (512, 1024, 2048, 4096)),
    "k 512": Line({"projected_dim": 512}, (1024,)),
    **{f"{kind}, pooling": Line(POOLING | {"projected_dim": 128, "sharing": kind}) for kind in SHARINGS},
    **{f"{kind}, k 256": Line(POOLING | {"projected_dim": 256, "sharing": kind}) for kind in SHARINGS[1:]},
    "recommended": Line(DYNAMIC | {"projected_dim": 128, "sliding_window": 64}),
}
PANELS: dict[str, list[tuple[str, int]]] = {
    "(a) n 512": [(line, 512) for line in ("Transformer", "k 32", "k 64", "k 128", "k 256")],
    "(b) n 1,024": [(line, 1024) for line in ("Transformer", "k 64", "k 128", "k 256", "k 512")],
    "(c) n 512, k 128, sharing": [
        (line, 512) for line in ("Transformer", "k 128", *(f"{kind}, pooling" for kind in SHARINGS))
    ],
    "(d) k 256": [("k 256", n) for n in (512, 1024, 2048, 4096)],
    "(e) n 512, k 128, recommended": [(line, 512) for line in ("Transformer", "k 128", "recommended")],
}


@settings
class Settings(ScriptSettings):
    """Pretrain models by k, sharing and length."""

    train_file: Training[list[File] | None] = None
    """Files of text; default: the source of the Python standard library."""
    lines: Training[list[str] | None] = None
    """Names of the models to train; default: all."""
    lengths: Training[list[Count]] = dataclasses.field(default_factory=lambda: [512, 1024, 2048, 4096])
    """Values of n; a model is trained at those of its own."""
    seeds: Training[list[Seed]] = dataclasses.field(default_factory=lambda: [0, 1, 2])
    """Seeds at n 512 of models that have several, the first elsewhere."""
    max_steps: Training[Count] = 6000
    """Updates of each training."""
    warmup_steps: Training[CountOrZero] = 500
    """Updates of linear warm-up."""
    start_steps: Training[Count] = 3000
    """Updates of the Transformer of n 128 with which all begin."""
    learning_rate: Training[Positive] = 2e-3
    """Highest learning rate."""
    hidden_size: Training[Count] = 128
    """Width of the encoders."""
    vocab_size: Training[Count] = 8192
    """Tokens in the vocabulary."""


def measure(settings: Settings, results: Results) -> None:
    """Train the start, then what is missing of all lines."""
    lines = settings.lines or [*LINES]
    for name in lines:
        if name not in LINES:
            raise InputError(f"lines: expected some of {', '.join(LINES)}, got {name}")
    results.save()  # so that an interrupted first training can be resumed
    trainings = results.folder / "trainings"
    begun = trainings / "start"
    if results.find(line="start") is None:
        values = _values(settings, _START_LENGTH, 0, settings.start_steps) | FULL
        results.add(line="start", n=_START_LENGTH, seed=0, **trained(values, begun))
    for name in lines:
        for n in LINES[name].lengths:
            for seed in settings.seeds if n == 512 and len(LINES[name].seeds) > 1 else settings.seeds[:1]:
                if n not in settings.lengths or results.find(line=name, n=n, seed=seed) is not None:
                    continue
                folder = trainings / f"{name}, n {n}, seed {seed}".replace(" ", "_")
                values = _values(settings, n, seed, settings.max_steps) | LINES[name].changes
                values["from_model"] = str(_converted(begun, folder, values))
                results.add(line=name, n=n, seed=seed, **trained(values, folder / "training"))
                shutil.rmtree(folder / "start")


def _values(settings: Settings, n: int, seed: int, updates: int) -> dict[str, Any]:
    """Settings of one training, as for `linformer pretrain`."""
    every = max(1, updates // 12)
    names = ("vocab_size", "hidden_size", "train_file", "learning_rate", "warmup_steps")
    values = BASE | SHIFTED | TENTH | {name: getattr(settings, name) for name in names}
    return values | {
        "num_hidden_layers": 4,
        "max_position_embeddings": n,
        "validation_fraction": 0.004,
        "seed": seed,
        "max_steps": updates,
        "eval_steps": every,
        "save_steps": every,
        "per_device_train_batch_size": max(1, _TOKENS // n),
    }


def _converted(source: Path, folder: Path, values: dict[str, Any]) -> Path:
    """The start, made longer by interpolation and linear, in a folder of its own; the seed draws E and F."""
    target = folder / "start"
    if not target.exists():
        transformers.set_seed(values["seed"])
        fields = {"attention": "linformer"} | {name: values[name] for name in _OF_SLOTS if name in values}
        full = LinformerForMaskedLM.from_pretrained(source)
        full.resize_sequence_length(values["max_position_embeddings"], mode="interpolate")
        model = LinformerForMaskedLM(type(full.config).from_dict(full.config.to_dict() | fields))
        model.load_state_dict(full.state_dict(), strict=False)  # all but E and F
        folder.mkdir(parents=True, exist_ok=True)
        with whole_folder(target) as part:
            model.save_pretrained(part)
            load_tokenizer(str(source), max_length=values["max_position_embeddings"]).save_pretrained(part)
    return target


def table(content: Record) -> str:
    """Losses of all models by n, and how far the Linformers stay behind during training, as Markdown."""
    parts = [
        "# Pretraining by k, n and sharing (Figure 3)",
        f"Loss in nats over the masked tokens of the validation text after {content['settings']['max_steps']:,} "
        "updates, perplexity, and the difference from the Transformer of the same n; means over seeds with the "
        "sample's standard deviation.",
    ]
    for n in sorted({record["n"] for record in content["records"] if record["line"] != "start"}):
        rows = [_row(content, name, n) for name in LINES if of(content, name, n)]
        corpus = next(record for record in content["records"] if record["n"] == n)
        described = f"{corpus['train_sequences']:,} sequences to train, {corpus['validation_sequences']:,} to validate"
        entropy = f"unigram entropy {corpus['unigram_entropy']:.3f} nats"
        parts += [f"## n {n:,}", f"{described}; {entropy}.", markdown(rows)]
    gaps = [
        {"model": f"{name}, n {n:,}"} | gap
        for n in (512, 1024)
        for name in LINES
        if name != "Transformer" and (gap := _gap(content, name, n))
    ]
    if gaps:
        parts += ["## Behind the Transformer during training, nats", markdown(gaps)]
    return "\n\n".join(parts)


def of(content: Record, line: str, n: int) -> list[Record]:
    """The trainings of a line at one n that have a loss, by seed."""
    found = [record for record in content["records"] if (record["line"], record["n"]) == (line, n)]
    return sorted((record for record in found if record["loss"] is not None), key=lambda record: record["seed"])


def _row(content: Record, line: str, n: int) -> dict[str, str]:
    records, base = of(content, line, n), {record["seed"]: record["loss"] for record in of(content, "Transformer", n)}
    losses = [record["loss"] for record in records]
    behind = [record["loss"] - base[record["seed"]] for record in records if record["seed"] in base]
    return {
        "model": line,
        "parameters": f"{records[0]['parameters']:,}",
        "seeds": str(len(records)),
        "loss": mean_and_deviation(losses, 3),
        "perplexity": mean_and_deviation([math.exp(loss) for loss in losses], 0),
        "minus Transformer": mean_and_deviation(behind, 3, sign="+") if behind and line != "Transformer" else "",
    }


def _gap(content: Record, line: str, n: int) -> dict[str, str]:
    """The mean difference from the Transformer, by equal seeds, after each quarter of the updates."""
    base = {record["seed"]: dict(record["curve"]) for record in of(content, "Transformer", n)}
    pairs = [(dict(record["curve"]), base[record["seed"]]) for record in of(content, line, n) if record["seed"] in base]
    if not pairs:
        return {}
    updates = sorted(update for update in pairs[0][0] if update)
    quarters = [updates[-(-len(updates) * quarter // 4) - 1] for quarter in (1, 2, 3, 4)]
    gaps = [sum(ours[update] - theirs[update] for ours, theirs in pairs) / len(pairs) for update in quarters]
    return {f"{update:,} updates": f"{gap:+.3f}" for update, gap in zip(quarters, gaps, strict=True)}


def _panels(content: Record) -> dict[str, dict[tuple[str, int], list[Record]]]:
    """The lines of each panel that were trained, without panels all of whose lines another one shows."""
    panels = {
        title: {(line, n): records for line, n in members if (records := of(content, line, n))}
        for title, members in PANELS.items()
    }
    kept: dict[str, dict[tuple[str, int], list[Record]]] = {}
    for title in sorted(panels, key=lambda title: -len(panels[title])):
        if not any(panels[title].keys() <= others.keys() for others in kept.values()) and panels[title]:
            kept[title] = panels[title]
    return {title: kept[title] for title in panels if title in kept}


def draw(content: Record) -> Figure | None:
    """Validation perplexity by update, a panel for each of the paper's and one more: mean and range over the seeds."""
    panels = _panels(content)
    if not panels:
        return None
    figure, grid = new_panels(len(panels), (4.6, 4.2))
    for axes, (title, lines) in zip(grid, panels.items(), strict=True):
        for number, ((line, n), records) in enumerate(lines.items()):
            draw_line(axes, number, f"n {n:,}" if title[:3] == "(d)" else line, records, perplexity=True)
        axes.set_yscale("log")
        log_ticks(axes.yaxis, (1, 1.5, 2, 3, 5, 7))
        number_ticks(axes.yaxis, ",.0f")
        number_ticks(axes.xaxis, ",.0f")
        axes.set(xlabel="updates", ylabel="validation perplexity")
        axes.set_title(title, fontsize=10)
        show_grid(axes)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize=8)
    figure.suptitle("In brackets: the last perplexity", fontsize=9)
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
