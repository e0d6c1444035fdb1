"""The typed settings of `linformer bench learning`, and what they say of each variant. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from linformer_kit.settings import PretrainSettings


@dataclass(kw_only=True)
class LearningSettings:
    """Many small pretrainings that differ in a few settings: which learns best?

    Settings of `cells` and `variants` are those of `linformer pretrain`, with dots: `model.projected_dim: 32`.

    Attributes:
        title: What is studied, for people.
        base: What all trainings have in common: settings of `linformer pretrain`.
        cells: Where it is studied, by name: the settings that differ from base; `english: true` for english_file.
        variants: What is compared, by name: the settings that differ. `after: NAME` goes on from the model of another
            variant, `minutes`, `learning_rates` and `seeds` (some of those below) are as below for this one.
        baseline: The variant that the others are compared with.
        learning_rates: Of several each variant takes the one with the least loss in the trainings of `tune`.
        tune: Cell and seed in which learning rates are chosen; default: the first of each.
        seeds: Seeds of all trainings in all cells.
        minutes: Time of each training alone on this machine, instead of base.max_steps updates; warm-up and evaluations
            keep their share.
        projected_dims: Numbers of slots with which models that have more are measured as well.
        sentence_file: Files of short texts to measure all models on as well: a text a line, in .tsv in the column
            `sentence`.
        english_file: Files of English text for the cells that ask for it.
        processes: Trainings at a time, each on its share of the processor's cores.
        output_dir: New folder for the results; default: a new folder below runs/.
        resume: Continue in output_dir: trainings that are done are kept, and one that was cut off goes on.
    """

    title: str
    base: PretrainSettings
    cells: dict[str, dict[str, Any]]
    variants: dict[str, dict[str, Any]]
    baseline: str
    learning_rates: list[float]
    tune: dict[str, Any] = field(default_factory=dict)
    seeds: list[int]
    minutes: float | None = None
    projected_dims: list[int] = field(default_factory=list)
    sentence_file: list[str] | None = None
    english_file: list[str] | None = None
    processes: int = 1
    output_dir: str | None = None
    resume: bool = False


def rates_of(settings: dict[str, Any], variant: str) -> list[float]:
    """The learning rates that a variant tries.

    Args:
        settings: A study's, as recorded in its results or by `dataclasses.asdict`.
        variant: Name of the variant.
    """
    return settings["variants"][variant].get("learning_rates", settings["learning_rates"])


def seeds_of(settings: dict[str, Any], variant: str) -> list[int]:
    """The seeds that a variant is trained with: its own, those of the variant that it continues, or all."""
    what = settings["variants"][variant]
    if "seeds" in what:
        return what["seeds"]
    after = what.get("after")
    return settings["seeds"] if after is None else seeds_of(settings, after)


def where_tuned(settings: dict[str, Any]) -> tuple[str, int]:
    """Cell and seed in which learning rates are chosen."""
    tune = settings["tune"]
    return tune.get("cell", next(iter(settings["cells"]))), tune.get("seed", settings["seeds"][0])
