"""What a small Linformer learns by: the studies that chose the defaults, one table each.

The paper does not say how E and F start, at which rate they learn, or where LayerNorm stands. Each study trains many
small encoders for masked language modelling: each variant first at several learning rates with the first seed, then at
the best one with all seeds, so both sides are tuned alike. docs/learning.md says what came out.

    python -m reproduce.learning --studies start gap

    start            how E and F start, by sharing (n 128, an hour on 2 cores)
    gap              what brings a Linformer nearer to the equal Transformer (n 128, 2 hours)
    neighbours       exact neighbours and dynamic slots beside a convolution (n 128, 3 hours)
    equal-time       2 minutes of training for each, instead of equal updates (n 512, 40 minutes)
    equal-time-2048  3 minutes for each at n 2,048 (an hour)
    length-2048      40 minutes for each at n 2,048, also length-4096 (5 and 2 hours)
    causal-2048      causal models, 5 minutes for each at n 2,048, also causal-512 and causal-4096 (an hour each)
    slots            512 slots, distributed evenly or by a spectrum (n 128, 1.5 hours)

Times are those of the source of the Python standard library.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.utils.data import default_collate

from linformer_cli.errors import InputError
from linformer_cli.settings import ModelSettings, PretrainSettings
from linformer_cli.settings.declare import Count, File, Seed, Training, settings
from linformer_kit import LinformerConfig
from linformer_kit.analysis.measure import interleaved
from linformer_kit.data.packing import load_masked_text
from linformer_kit.report.environment import best_device, fast_dtype
from linformer_kit.report.figures import new_figure, show_grid
from linformer_kit.training.optimizer import adamw
from linformer_kit.training.pretrain import language_model, pretrain
from linformer_kit.training.process import keep_freed_memory
from linformer_kit.training.task import to_device
from reproduce.common import Record, Results, ScriptSettings, markdown, mean_and_deviation, run
from reproduce.studies import BASE, STUDIES, Study

_TIMED = 15  # updates of each variant
_MOST_LINES = 6  # in a panel of the figure


@settings
class Settings(ScriptSettings):
    """Pretrain small encoders: the studies."""

    studies: Training[list[str]]
    """Names of the studies."""
    variants: Training[list[str] | None] = None
    """Only these variants of the studies; default: all."""
    seeds: Training[list[Seed] | None] = None
    """Only these seeds; default: those of each variant."""
    train_file: Training[list[File] | None] = None
    """Files of text; default: the source of the Python standard library."""
    hidden_size: Training[Count] = 128
    """Width of the encoders."""


def measure(settings: Settings, results: Results) -> None:
    """Train what is missing of each study."""
    for name in settings.studies:
        if name not in STUDIES:
            raise InputError(f"studies: expected some of {', '.join(STUDIES)}, got {name}")
    results.save()  # so that an interrupted first training can be resumed
    for name in settings.studies:  # first of all, so that the machine need be idle for a short time only
        if STUDIES[name].minutes is not None and results.find(timed=name) is None:
            values = {label: _values(settings, name, label, 0.0, 0) for label in STUDIES[name].variants}
            results.add(timed=name, seconds=seconds_of_updates(values))
    for name in settings.studies:
        of = STUDIES[name].variants
        variants = {label: of[label] for label in of if settings.variants is None or label in settings.variants}
        rates = {label: _best_rate(settings, results, name, label) for label in variants}
        seeds = {label: settings.seeds or variant.seeds for label, variant in variants.items() if variant.seeds}
        for seed in dict.fromkeys(seed for each in seeds.values() for seed in each):
            for label in (label for label in seeds if seed in seeds[label]):
                _train(settings, results, name, label, rates[label], seed, STUDIES[name].minutes)


def _best_rate(settings: Settings, results: Results, name: str, label: str) -> float:
    """The learning rate with the lowest loss with the first seed."""
    study, variant = STUDIES[name], STUDIES[name].variants[label]
    if len(variant.rates) == 1 and variant.seeds:
        return variant.rates[0]
    seed, minutes = (settings.seeds or variant.seeds or (0,))[0], study.trial or study.minutes
    losses = {rate: _train(settings, results, name, label, rate, seed, minutes)["loss"] for rate in variant.rates}
    return min(losses, key=lambda rate: math.inf if losses[rate] is None else losses[rate])


def _values(settings: Settings, name: str, label: str, rate: float, seed: int) -> dict[str, Any]:
    """Settings of one training, as for `linformer pretrain`."""
    values = BASE | STUDIES[name].base | STUDIES[name].variants[label].changes | {"learning_rate": rate, "seed": seed}
    given = {"hidden_size": settings.hidden_size, "train_file": settings.train_file}
    return values | given


def _train(
    settings: Settings, results: Results, name: str, label: str, rate: float, seed: int, minutes: float | None
) -> Record:
    """One training; its record."""
    key: Record = {"study": name, "variant": label, "learning_rate": rate, "seed": seed}
    key |= {} if minutes is None else {"minutes": minutes}
    if (there := results.find(**key)) is not None:
        return there
    values, timed = _values(settings, name, label, rate, seed), results.find(timed=name)
    if minutes is not None and timed is not None:
        timed_as = STUDIES[name].variants[label].updates_of or label
        key["seconds_per_update"] = statistics.median(timed["seconds"][timed_as])
        values |= with_updates(values, max(1, round(60 * minutes / key["seconds_per_update"])))
    folder = f"{label}, {rate:g}, seed {seed}" + (", trial" if minutes != STUDIES[name].minutes else "")
    return results.add(**key, **trained(values, results.folder / "trainings" / name / folder.replace(" ", "_")))


def pretrain_settings(values: dict[str, Any]) -> PretrainSettings:
    """Settings of `linformer pretrain` from one mapping of its settings and those of the model."""
    names = {field.name for field in dataclasses.fields(ModelSettings)}
    model = ModelSettings(**{name: value for name, value in values.items() if name in names})
    return PretrainSettings(model=model, **{name: value for name, value in values.items() if name not in names})


def trained(values: dict[str, Any], folder: Path) -> Record:
    """Train, or resume, in a folder; the measurements. The loss of a training that diverged is None."""
    keep_freed_memory()
    folder.mkdir(parents=True, exist_ok=True)
    found, _ = pretrain(pretrain_settings(values | {"output_dir": str(folder), "resume": True}))
    curve = [[update, loss if math.isfinite(loss) else None] for update, loss in found["curve"]]
    corpus = {name: found["corpus"][name] for name in ("seq_len", "train_sequences", "validation_sequences")}
    measured = {"parameters": found["model"]["parameters"]} | {name: found[name] for name in ("updates", "seconds")}
    return {**measured, "loss": curve[-1][1], "curve": curve, "unigram_entropy": found["unigram_entropy"], **corpus}


def with_updates(values: dict[str, Any], updates: int) -> dict[str, int]:
    """Settings of a training with another number of updates; warm-up, evaluations and checkpoints keep their share."""
    share = updates / values["max_steps"]
    return {"max_steps": updates} | {
        name: math.ceil(values[name] * share) for name in ("warmup_steps", "eval_steps", "save_steps")
    }


def seconds_of_updates(variants: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """Seconds of single updates of each variant, alternately; measure them on an idle machine."""
    device = best_device()
    runs = {label: _update(pretrain_settings(values), device) for label, values in variants.items()}
    return interleaved(runs, device=device, repetitions=_TIMED, seconds=math.inf)


def _update(settings: PretrainSettings, device: torch.device) -> Callable[[], object]:
    """A function that makes one update, as `linformer pretrain` does, always on the same sequences."""
    data = load_masked_text(settings)
    model_class, task_class = language_model(settings.model)
    model = model_class(LinformerConfig(**dataclasses.asdict(settings.model))).to(device)
    task = task_class(model, data.tokenizer, train=data.train, validation=data.validation, collate=default_collate)
    optimizer, dtype = adamw(model, settings), fast_dtype(settings.dtype, device)
    sequences = range(settings.per_device_train_batch_size)

    def update() -> None:
        batch = to_device(default_collate([data.train[index] for index in sequences]), device)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = task(batch, task.labels(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return update


def table(content: Record) -> str:
    """Losses of the variants of each study, as Markdown."""
    parts = [
        "# What learns",
        "Losses in nats over the predicted tokens of the whole validation text; means over seeds with the sample's "
        "standard deviation, and differences from the first variant by equal seeds.",
    ]
    for name in content["settings"]["studies"]:
        if records := trainings(content, name):
            parts += [f"## {STUDIES[name].title}", *_study_table(STUDIES[name], records)]
    return "\n\n".join(parts)


def trainings(content: Record, study: str) -> list[Record]:
    """The records of the trainings of a study."""
    return [record for record in content["records"] if record.get("study") == study]


def tried(study: Study, records: list[Record], label: str) -> list[Record]:
    """The records of the trainings that chose the rate of a variant."""
    minutes = study.trial or study.minutes
    of = [record for record in records if (record["variant"], record.get("minutes")) == (label, minutes)]
    return [record for record in of if record["seed"] == of[0]["seed"]]


def chosen(study: Study, records: list[Record]) -> dict[str, list[Record]]:
    """The records of each variant at its best learning rate, by seed."""
    found = {}
    for label in study.variants:
        of = [record for record in records if (record["variant"], record.get("minutes")) == (label, study.minutes)]
        of.sort(key=lambda record: record["seed"])
        if of:
            at = tried(study, records, label) or of
            best = min(at, key=lambda record: math.inf if record["loss"] is None else record["loss"])["learning_rate"]
            found[label] = [record for record in of if record["learning_rate"] == best]
    return found


def _study_table(study: Study, records: list[Record]) -> Iterator[str]:
    baseline, rows, rates = next(iter(study.variants)), [], []
    by_variant = chosen(study, records)
    of_baseline = {record["seed"]: record["loss"] for record in by_variant.get(baseline, [])}
    for label, of in by_variant.items():
        losses = [record["loss"] for record in of]
        pairs = [(loss, of_baseline.get(record["seed"])) for loss, record in zip(losses, of, strict=True)]
        differences = [loss - base for loss, base in pairs if loss is not None and base is not None]
        row = {
            "variant": label,
            "parameters": f"{of[0]['parameters']:,}",
            "learning rate": f"{of[0]['learning_rate']:g}",
            "updates": ", ".join(map(str, sorted({record["updates"] for record in of}))),
            "loss": "diverged" if None in losses else mean_and_deviation(losses, 3),
            "by seed": ", ".join(f"{record['seed']}: {_loss(record)}" for record in of),
            f"minus {baseline}": mean_and_deviation(differences, 3, sign="+")
            if label != baseline and differences
            else "",
        }
        if study.minutes is not None:
            row["an update, ms"] = f"{1e3 * of[0]['seconds_per_update']:.1f}"
        rows.append(row)
    for label in study.variants:
        of = tried(study, records, label)
        if len(of) > 1 or (study.trial is not None and of):
            rates.append({"variant": label} | {f"{record['learning_rate']:g}": _loss(record) for record in of})
    corpus = records[0]
    text = f"{corpus['train_sequences']:,} sequences to train, {corpus['validation_sequences']:,} to validate"
    minutes = "" if study.minutes is None else f" {study.minutes:g} minutes of training each."
    yield f"n {corpus['seq_len']:,}; {text}; unigram entropy {corpus['unigram_entropy']:.3f} nats.{minutes}"
    yield markdown(rows)
    if rates:
        tested = sorted(set().union(*rates) - {"variant"}, key=float)
        time = "" if study.trial is None else f", {study.trial:g} minutes each"
        yield f"Learning rates tried with the first seed{time}:"
        yield markdown(rates, ["variant", *tested])


def _loss(record: Record) -> str:
    return "diverged" if record["loss"] is None else f"{record['loss']:.3f}"


def draw(content: Record) -> Figure:
    """Loss during training, a panel for each study: means and ranges of the seeds of at most six variants."""
    shown = {}
    for name in content["settings"]["studies"]:
        if of := chosen(STUDIES[name], trainings(content, name)):
            baseline = next(iter(STUDIES[name].variants))
            order = sorted(of, key=lambda label: (label != baseline, -len(of[label]), of[label][0]["loss"] or math.inf))
            drawn = STUDIES[name].drawn or order[:_MOST_LINES]
            shown[name] = {label: of[label] for label in of if label in drawn}
    figure, grid = new_figure((9.5, 3.6 * len(shown)), len(shown), squeeze=False)
    for axes, (name, variants) in zip(grid[:, 0], shown.items(), strict=True):
        for number, (label, records) in enumerate(variants.items()):
            minutes = records[0].get("minutes")
            draw_line(axes, number, label, records, per_update=minutes / records[0]["updates"] if minutes else 1)
        axes.set_title(STUDIES[name].title, fontsize=10)
        axes.set(xlabel="updates" if STUDIES[name].minutes is None else "minutes", ylabel="validation loss (nats)")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False, title="last loss")
        show_grid(axes)
    return figure


def draw_line(
    axes: Axes, number: int, label: str, records: list[Record], *, per_update: float = 1, perplexity: bool = False
) -> None:
    """Plot the mean loss, or perplexity, of some trainings against updates, and the range of the seeds."""
    curves = [{update: loss for update, loss in record["curve"] if update} for record in records]
    updates = [update for update in curves[0] if all(curve.get(update) is not None for curve in curves)]
    if not updates:
        return
    values = [[math.exp(curve[update]) if perplexity else curve[update] for curve in curves] for update in updates]
    means, x = [statistics.fmean(each) for each in values], [update * per_update for update in updates]
    color, last = colormaps["tab10"](number), f"{means[-1]:.0f}" if perplexity else f"{means[-1]:.3f}"
    axes.plot(x, means, marker="osD^vP"[number], markersize=4, color=color, label=f"{label} ({last})")
    axes.fill_between(x, list(map(min, values)), list(map(max, values)), color=color, alpha=0.15)


if __name__ == "__main__":
    run(Settings, measure, table, draw)
