"""The trainings of a study of learning: which settings each has, one of them run, and the time of its updates."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from jsonargparse import ArgumentParser, Namespace
from torch.utils.data import default_collate
from transformers import TrainerCallback

from linformer_kit.data.tokenizer import load_tokenizer
from linformer_kit.errors import InputError
from linformer_kit.experiments.learning.short_texts import short_text_losses
from linformer_kit.experiments.measure import synchronize
from linformer_kit.experiments.prepare import require
from linformer_kit.models.heads import LinformerForMaskedLM
from linformer_kit.report.base import file_name
from linformer_kit.settings import ModelSettings, PretrainSettings, names_only
from linformer_kit.settings.bench import LearningSettings
from linformer_kit.training import pretrain
from linformer_kit.training.identity import defaults
from linformer_kit.training.memory import keep_freed_memory
from linformer_kit.training.metrics import mean_token_loss

# What a variant may say beside settings of `linformer pretrain`, and a cell.
OF_VARIANTS = ("after", "minutes", "learning_rates", "seeds")
OF_CELLS = ("english",)
# Settings that the study itself decides, or that it has no use for.
_RESERVED = ("learning_rate", "seed", "from_model", "output_dir", "resume", "overwrite", "compare_full")
# Settings that say where files are: in results they stand by their names alone.
_PATHS = ("train_file", "validation_file", "tokenizer", "cache_dir")
# Defaults of trainings and models that were others when results were written: names of trials take these for unsaid.
_FIRST_DEFAULTS = {"resize_mode": "extend"}
_FIRST_MODEL_DEFAULTS = {"projection_initializer": "pooling"}
_TRIALS_FOLDER = "trials"
_TIMED_UPDATES, _WARM_UPDATES = 20, 5


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        cell: Name of the cell of the study.
        variant: Name of the variant.
        learning_rate: The highest of the schedule.
        seed: Of everything that is drawn.
        minutes: Time that it may take, which makes its number of updates; None: as many as its settings say.
        before: Name of the trial whose model it goes on from.
        kind: Cell and variant with all that they say: the same for other learning rates and seeds.
        name: A folder's name that no other trial has.
        settings: Of `linformer pretrain`.
    """

    cell: str
    variant: str
    learning_rate: float
    seed: int
    minutes: float | None
    before: str | None
    kind: str
    name: str
    settings: PretrainSettings = dataclasses.field(repr=False)


def make_trial(
    study: LearningSettings, cell: str, variant: str, learning_rate: float, seed: int, rates: dict[str, float]
) -> Trial:
    """A trial with its settings: those of the study's base, changed by the cell and then by the variant.

    Args:
        study: Which it is of.
        cell: Name of its cell.
        variant: Name of its variant.
        learning_rate: Its own.
        seed: Its own.
        rates: Learning rates of the variants that others go on from.

    Raises:
        InputError: for a setting that `linformer pretrain` does not have or take, or that is the study's own to make.
    """
    where, what = dict(study.cells[cell]), dict(study.variants[variant])
    english, own = where.pop("english", False), {name: what.pop(name, None) for name in OF_VARIANTS}
    if english:
        where["train_file"] = study.english_file
    fields = dataclasses.asdict(study.base)
    for owner, changes in ((f"cells.{cell}", where), (f"variants.{variant}", what)):
        for name, value in changes.items():
            _change(fields, name, value, owner)
    after = own["after"]
    before = None if after is None else make_trial(study, cell, after, rates[after], seed, rates).name
    minutes = study.minutes if own["minutes"] is None else own["minutes"]
    settings = _parsed(fields, f"cells.{cell}, variants.{variant}")
    slug = f"{file_name(cell)}-{file_name(variant)}"
    content = {**dataclasses.asdict(settings), "cell": cell, "variant": variant, "minutes": minutes, "after": after}
    return Trial(
        cell=cell,
        variant=variant,
        learning_rate=learning_rate,
        seed=seed,
        minutes=minutes,
        before=before,
        kind=f"{slug}-{_digest(content)}",
        name=f"{slug}-lr{learning_rate:g}-seed{seed}-{_digest({**content, 'before': before})}",
        settings=dataclasses.replace(settings, learning_rate=learning_rate, seed=seed),
    )


def recorded_study(study: LearningSettings) -> dict[str, Any]:
    """The settings of a study as they stand in its results: what was done, and no place on this machine."""
    unsaid = ("output_dir", "resume", "processes")
    fields = {name: value for name, value in dataclasses.asdict(study).items() if name not in unsaid}
    fields["base"]["cache_dir"] = None
    for name in ("english_file", "sentence_file"):
        fields[name] = names_only(fields[name])
    for changes in (fields["base"], *fields["cells"].values(), *fields["variants"].values()):
        for name in _PATHS:
            if name in changes:
                changes[name] = names_only(changes[name])
    return fields


def check_trial(trial: Trial) -> None:
    """Raise what the training would, as far as can be seen without data and without the trial before it."""
    settings = trial.settings
    pretrain.check(settings if trial.before is None else dataclasses.replace(settings, elastic_projected_dims=None))
    require(trial.before is not None or settings.resize_to is None, "resize_to", "`after` beside it", "none")


def timed(trial: Trial, seconds: float) -> Trial:
    """The trial with as many updates of so many seconds as fit in its minutes; warm-up, evaluations and checkpoints
    keep their share."""
    assert trial.minutes is not None
    settings = trial.settings
    updates = max(1, round(trial.minutes * 60 / seconds))
    scaled = {
        name: math.ceil(getattr(settings, name) * updates / settings.max_steps)
        for name in ("warmup_steps", "eval_steps", "save_steps")
    }
    return dataclasses.replace(trial, settings=dataclasses.replace(settings, max_steps=updates, **scaled))


def run_trial(
    trial: Trial, folder: Path, threads: int, projected_dims: list[int], sentence_file: list[str] | None
) -> dict[str, Any]:
    """Train, or finish what was cut off, and measure.

    Args:
        trial: What to train.
        folder: That of the study.
        threads: Of a CPU.
        projected_dims: Numbers of slots to measure with as well.
        sentence_file: Files of short texts to measure on as well.

    Returns:
        What stands in `learning.json` for it; a loss that is not finite is None.
    """
    _alone(threads)
    place = folder / _TRIALS_FOLDER / trial.name
    place.mkdir(parents=True, exist_ok=True)
    with (place / "log.txt").open("a", encoding="utf-8") as log, contextlib.redirect_stderr(log):
        settings = dataclasses.replace(
            trial.settings, output_dir=str(place), resume=True, from_model=_before(trial, folder)
        )
        results, _ = pretrain.pretrain(settings)
        (model,) = results["models"].values()
        said = ("name", "kind", "cell", "variant", "learning_rate", "seed", "minutes", "before")
        measured = ("parameters", "updates", "seconds", "tokens_per_second", "bf16")
        return {
            **{name: getattr(trial, name) for name in said},
            **{name: model[name] for name in measured},
            "validation_loss": _finite(model["validation_loss"]),
            "curve": [[update, _finite(loss)] for update, loss in model["curve"]],
            "unigram_entropy": results["unigram_entropy"],
            "corpus": {name: value for name, value in results["corpus"].items() if name != "description"},
            **_more_losses(place, settings, model["bf16"], projected_dims, sentence_file),
        }


def seconds_per_update(trial: Trial, folder: Path, threads: int) -> float:
    """Median time of an update of the trial's model, data and optimizer included."""
    _alone(threads)
    updates = _WARM_UPDATES + _TIMED_UPDATES
    settings = dataclasses.replace(
        trial.settings,
        from_model=_before(trial, folder),
        max_steps=updates,
        warmup_steps=1,
        eval_steps=updates + 1,
        save_steps=updates + 1,
    )
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stderr(io.StringIO()):
        settings, model = pretrain.starting_from(settings)
        data = pretrain.load_data(settings)
        if model is None:
            config = pretrain.model_config(settings, data.tokenizer, attention=settings.model.attention)
            model = LinformerForMaskedLM(config)
        trainer = pretrain.build_trainer(settings, data, Path(temporary), model)
        trainer.args.eval_on_start = False
        clock = _Clock(trainer.args.device)
        trainer.add_callback(clock)
        trainer.train()
    return statistics.median(itertools.islice(clock.seconds(), _WARM_UPDATES, None))


class _Clock(TrainerCallback):
    """When each update ended."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ends: list[float] = []

    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        synchronize(self._device)
        self._ends.append(time.perf_counter())

    def seconds(self) -> Iterator[float]:
        """Of each update but the first."""
        return (end - start for start, end in itertools.pairwise(self._ends))


def _change(fields: dict[str, Any], name: str, value: Any, owner: str) -> None:
    """Put a value where a name with dots says."""
    require(
        isinstance(name, str) and name not in _RESERVED, f"{owner}.{name}", "a setting that is not the study's", name
    )
    *path, last = name.split(".")
    place: Any = fields
    for part in path:
        place = place.get(part) if isinstance(place, dict) else None
    known = isinstance(place, dict) and (last in place or path == ["trainer"]) and not isinstance(place.get(last), dict)
    require(known, f"{owner}.{name}", "a setting of linformer pretrain", "an unknown one or a whole group of them")
    place[last] = value


def _parsed(fields: dict[str, Any], owner: str) -> PretrainSettings:
    """Settings from names and values, types checked."""
    try:
        values: Namespace = _parser().parse_object(fields)
    except Exception as error:
        raise InputError(f"{owner}: {' '.join(str(error).split())}") from None
    named = vars(values)
    return PretrainSettings(**{**named, "model": ModelSettings(**vars(named["model"]))})


@functools.cache
def _parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(PretrainSettings)
    return parser


def _digest(content: dict[str, Any]) -> str:
    """Of what is said beyond the first defaults, so that it stays the same where settings join those of today."""
    usual, usual_model = defaults(PretrainSettings) | _FIRST_DEFAULTS, defaults(ModelSettings) | _FIRST_MODEL_DEFAULTS
    said = {name: value for name, value in content.items() if value != usual.get(name)}
    said["model"] = {name: value for name, value in content["model"].items() if value != usual_model[name]}
    resized = content["resize_to"] is not None
    for name in ("cache_dir", *_RESERVED, *(() if resized else ("resize_mode",))):
        said.pop(name, None)
    said |= {name: names_only(said[name]) for name in _PATHS if name in said}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]


def _before(trial: Trial, folder: Path) -> str | None:
    """The folder of the model that a trial goes on from."""
    return None if trial.before is None else str((folder / _TRIALS_FOLDER / trial.before).resolve())


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _alone(threads: int) -> None:
    """What a process that trains beside others needs."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()


def _more_losses(
    place: Path, settings: PretrainSettings, bf16: bool, projected_dims: list[int], sentence_file: list[str] | None
) -> dict[str, Any]:
    """Losses with fewer slots, and of short texts."""
    if not projected_dims and not sentence_file:
        return {}
    settings, model = pretrain.starting_from(dataclasses.replace(settings, from_model=str(place), resize_to=None))
    assert model is not None
    config = model.config
    losses: dict[str, Any] = {}
    dims = [] if config.attention == "full" else [dim for dim in projected_dims if dim < config.largest_projected_dim]
    if dims:
        blocks = pretrain.load_data(settings).validation
        size = settings.per_device_eval_batch_size
        batches = [
            default_collate([blocks[index] for index in range(start, min(start + size, len(blocks)))])
            for start in range(0, len(blocks), size)
        ]
        losses["by_projected_dim"] = {}
        for dim in dims:
            model.set_projected_dim(dim)
            losses["by_projected_dim"][str(dim)] = _finite(mean_token_loss(model, batches, bf16=bf16))
        model.set_projected_dim()
    if sentence_file:
        tokenizer = load_tokenizer(str(place), max_length=config.max_position_embeddings)
        masking: dict[str, Any] = {"seed": settings.seed, "probability": settings.mlm_probability}
        found = short_text_losses(model, tokenizer, sentence_file, bf16=bf16, **masking)
        losses["sentences"] = {form: _finite(loss) for form, loss in found.items()}
    return losses
