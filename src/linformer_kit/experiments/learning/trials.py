"""The trainings of a study of learning, and which settings each has. `running` runs them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from linformer_kit.errors import InputError
from linformer_kit.experiments.experiment import portable, require
from linformer_kit.report.base import file_name
from linformer_kit.settings import ModelSettings, PretrainSettings, names_only
from linformer_kit.settings.study import LearningSettings
from linformer_kit.training import pretrain
from linformer_kit.training.identity import defaults

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
# Settings that stood under this name when results were written, and so do for names of trials.
_FIRST_GROUP, _OF_FIRST_GROUP = "trainer", ("adam_beta1", "adam_beta2", "adam_epsilon")


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
    fields = portable(study, files=("english_file", "sentence_file"), without=unsaid)
    fields["base"]["cache_dir"] = None
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


def _change(fields: dict[str, Any], name: str, value: Any, owner: str) -> None:
    """Put a value where a name with dots says."""
    require(
        isinstance(name, str) and name not in _RESERVED, f"{owner}.{name}", "a setting that is not the study's", name
    )
    *path, last = name.split(".")
    place: Any = fields
    for part in path:
        place = place.get(part) if isinstance(place, dict) else None
    known = isinstance(place, dict) and last in place and not isinstance(place.get(last), dict)
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
    if grouped := {name: said.pop(name) for name in _OF_FIRST_GROUP if name in said}:
        said[_FIRST_GROUP] = grouped
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]
