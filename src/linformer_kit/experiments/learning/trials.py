"""The trainings of a learning study and their settings. `running` runs them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from linformer_kit.errors import InputError
from linformer_kit.experiments.experiment import require
from linformer_kit.interop.full_attention import SLOT_FIELDS
from linformer_kit.report.base import file_name
from linformer_kit.settings import ModelSettings, PretrainSettings, names_only, portable
from linformer_kit.settings.study import OF_CELLS, OF_VARIANTS, LearningSettings, cell_of_start, seeds_of
from linformer_kit.training import pretrain
from linformer_kit.training.identity import defaults

# Settings of the model that a conversion may change.
_OF_CONVERSION = (
    *("attention", "max_position_embeddings", *SLOT_FIELDS),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
)
# Settings that the study itself determines or does not support.
_RESERVED = ("learning_rate", "seed", "from_model", "output_dir", "resume", "overwrite", "compare_full")
# Settings with paths; results record only the names of the files.
_PATHS = ("train_file", "validation_file", "tokenizer", "cache_dir")
# Defaults that have changed since results were written: trial names treat these old values as defaults.
_FIRST_DEFAULTS = {"resize_mode": "extend"}
_FIRST_MODEL_DEFAULTS = {"projection_initializer": "pooling"}
# Settings that were in this group when results were written; trial names still use the group.
_FIRST_GROUP, _OF_FIRST_GROUP = "trainer", ("adam_beta1", "adam_beta2", "adam_epsilon")


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        cell: Name of the cell of the study.
        variant: Name of the variant.
        learning_rate: Highest learning rate of the schedule.
        seed: Seed of all random numbers.
        minutes: Training time, which determines the number of updates; None: as many updates as in `settings`.
        before: Name of the trial whose model it continues.
        converts: Whether that model, which has full attention, is first converted to the model of `settings`.
        model: The architecture: that of `settings`, or of the model that it continues unchanged.
        kind: Identifies cell and variant with their settings; the same for other learning rates and seeds.
        name: Unique name of its folder.
        settings: Settings of `linformer pretrain`.
    """

    cell: str
    variant: str
    learning_rate: float
    seed: int
    minutes: float | None
    before: str | None
    converts: bool
    model: ModelSettings
    kind: str
    name: str
    settings: PretrainSettings = dataclasses.field(repr=False)


def make_trial(
    study: LearningSettings, cell: str, variant: str, learning_rate: float, seed: int, rates: dict[str, float]
) -> Trial:
    """Make a trial with its settings: those of the study's base, changed by the cell and then by the variant.

    Args:
        study: The study.
        cell: Name of its cell.
        variant: Name of its variant.
        learning_rate: Its learning rate.
        seed: Its seed.
        rates: Learning rates of the variants that others continue.

    Raises:
        InputError: for a setting that is unknown or invalid in `linformer pretrain`, or that the study determines.
    """
    where, what = dict(study.cells[cell]), dict(study.variants[variant])
    of_cell = {name: where.pop(name, None) for name in OF_CELLS}
    own = {name: what.pop(name, None) for name in OF_VARIANTS}
    if of_cell["english"]:
        where["train_file"] = study.english_file
    fields = dataclasses.asdict(study.base)
    for owner, changes in ((f"cells.{cell}", where), (f"variants.{variant}", what)):
        for name, value in changes.items():
            _change(fields, name, value, owner)
    after = own["after"]
    continued, converts = None, after is not None and changes_model(what)
    if after is not None:
        continued = _make_continued(study, cell, after, seed, rates)
    before = None if continued is None else continued.name
    minutes = study.minutes if own["minutes"] is None else own["minutes"]
    settings = _parsed(fields, f"cells.{cell}, variants.{variant}")
    if continued is not None and converts:
        _check_conversion(f"variants.{variant}", settings, continued.model)
    slug = f"{file_name(cell)}-{file_name(variant)}"
    content = {**dataclasses.asdict(settings), "cell": cell, "variant": variant, "minutes": minutes, "after": after}
    if converts:
        content["converts"] = True
    return Trial(
        cell=cell,
        variant=variant,
        learning_rate=learning_rate,
        seed=seed,
        minutes=minutes,
        before=before,
        converts=converts,
        model=settings.model if continued is None or converts else continued.model,
        kind=f"{slug}-{_digest(content)}",
        name=f"{slug}-lr{learning_rate:g}-seed{seed}-{_digest({**content, 'before': before})}",
        settings=dataclasses.replace(settings, learning_rate=learning_rate, seed=seed),
    )


def _make_continued(study: LearningSettings, cell: str, variant: str, seed: int, rates: dict[str, float]) -> Trial:
    """The trial of a variant that one with this cell and seed continues: the same, or the only ones there."""
    fields = dataclasses.asdict(study)
    there = cell_of_start(fields, variant, cell)
    seeds = seeds_of(fields, variant, there)
    return make_trial(study, there, variant, rates[variant], seed if seed in seeds else seeds[0], rates)


def recorded_study(study: LearningSettings) -> dict[str, Any]:
    """The settings of a study as recorded in its results, without paths of this machine."""
    return portable(study, without=("resume", "processes"))


def check_trial(trial: Trial) -> None:
    """Raise the errors of the training that can be found without data and without the previous trial."""
    settings = trial.settings
    known = trial.before is None or trial.converts  # the settings are those of the model
    pretrain.check(settings if known else dataclasses.replace(settings, elastic_projected_dims=None))
    expected = "none without `after`" if trial.before is None else "none where the model is converted (to its cell's n)"
    require(not known or settings.resize_to is None, "resize_to", expected, settings.resize_to)


def changes_model(what: dict[str, Any]) -> bool:
    """Whether the changes of a variant change the model."""
    return any(str(name).startswith("model.") for name in what)


def timed(trial: Trial, seconds: float) -> Trial:
    """The trial with the number of updates of `seconds` each that fit in its minutes; warm-up, evaluations and
    checkpoints keep their share."""
    assert trial.minutes is not None
    settings = trial.settings
    updates = max(1, round(trial.minutes * 60 / seconds))
    scaled = {
        name: math.ceil(getattr(settings, name) * updates / settings.max_steps)
        for name in ("warmup_steps", "eval_steps", "save_steps")
    }
    return dataclasses.replace(trial, settings=dataclasses.replace(settings, max_steps=updates, **scaled))


def _check_conversion(owner: str, settings: PretrainSettings, source: ModelSettings) -> None:
    """Raise an error for a model that another cannot be converted to."""
    expected = "a variant with full attention, as this one has settings of the model"
    require(source.attention == "full", f"{owner}.after", expected, f"one with attention {source.attention}")
    for name, there in dataclasses.asdict(source).items():
        here = getattr(settings.model, name)
        require(name in _OF_CONVERSION or here == there, f"{owner}.model.{name}", f"{there!r}, as `after` has", here)
    length, shortest = settings.model.max_position_embeddings, source.max_position_embeddings
    expected = f"{shortest} or more with resize_mode extend"
    fits = settings.resize_mode != "extend" or length >= shortest
    require(fits, f"{owner}.model.max_position_embeddings", expected, length)


def _change(fields: dict[str, Any], name: str, value: Any, owner: str) -> None:
    """Set the value of a dotted name."""
    require(
        isinstance(name, str) and name not in _RESERVED, f"{owner}.{name}", "a setting not fixed by the study", name
    )
    *path, last = name.split(".")
    place: Any = fields
    for part in path:
        place = place.get(part) if isinstance(place, dict) else None
    known = isinstance(place, dict) and last in place and not isinstance(place.get(last), dict)
    require(known, f"{owner}.{name}", "a setting of linformer pretrain", "an unknown one or a group")
    # The parser reads the quoted "true" of a variant as a bool, as its values have no type; `bf16` is a name.
    named = isinstance(place[last], str) and isinstance(value, bool)
    place[last] = str(value).lower() if named else value


def _parsed(fields: dict[str, Any], owner: str) -> PretrainSettings:
    """Parse settings from names and values, with type checks."""
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
    """Hash of the settings that differ from the first defaults, so that new settings do not change it."""
    usual, usual_model = defaults(PretrainSettings) | _FIRST_DEFAULTS, defaults(ModelSettings) | _FIRST_MODEL_DEFAULTS
    said = {name: value for name, value in content.items() if value != usual.get(name)}
    said["model"] = {name: value for name, value in content["model"].items() if value != usual_model[name]}
    resized = content["resize_to"] is not None or "converts" in content
    for name in ("cache_dir", *_RESERVED, *(() if resized else ("resize_mode",))):
        said.pop(name, None)
    said |= {name: names_only(said[name]) for name in _PATHS if name in said}
    if grouped := {name: said.pop(name) for name in _OF_FIRST_GROUP if name in said}:
        said[_FIRST_GROUP] = grouped
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]
