"""Settings of `linformer bench learning`, and functions of them. Imports no torch or transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from linformer_kit.settings import PretrainSettings

# Keys that variants, and cells, may have in addition to settings of `linformer pretrain`.
OF_VARIANTS = ("after", "minutes", "cells", "learning_rates", "seeds")
OF_CELLS = ("english", "seeds")


@dataclass(kw_only=True)
class LearningSettings:
    """A comparison of many small pretrainings that differ in a few settings.

    Settings of `cells` and `variants` are those of `linformer pretrain`, with dots: `model.projected_dim: 32`.

    Attributes:
        title: Title of the study.
        base: Settings of `linformer pretrain` for all trainings, as a YAML file; single ones are --base.NAME.
        cells: Conditions of the study, by name: settings that differ from base; `english: true` uses english_file. A
            cell may have a selection of the `seeds`.
        variants: Variants to compare, by name: settings that differ. `after: NAME` continues from the model of another
            variant; with settings of the model beside it, a model with full attention is first converted: its weights
            are kept, its positions resized, and E and F are new. If that variant has one cell or one seed alone, its
            model is the start in all cells or with all seeds. A variant may have its own `minutes`, and a selection of
            the `cells`, `learning_rates` and `seeds`.
        baseline: The variant that the others are compared with.
        learning_rates: Learning rates to try; each variant uses the one with the lowest loss in the trainings of
            `tune`.
        tune: Cell and seed in which learning rates are compared, as `{cell: NAME, seed: INT}`; default: the first of
            each.
        seeds: Seeds of all trainings in all cells.
        panels: Figures of perplexity beside the curves of each cell, by title: each has the names of its `cells` and
            `variants`, at most six pairs of them.
        minutes: Time of each training in minutes if it runs alone on this machine, instead of base.max_steps updates;
            warm-up and evaluations keep their share.
        projected_dims: Smaller values of k with which models are measured too.
        sentence_file: Files of short texts on which all models are measured too: one text per line, in .tsv in the
            column `sentence`.
        english_file: Files of English text for cells with `english: true`.
        measure_updates: Also measure time and memory of an update of each variant, after its trainings; with `minutes`
            the time is needed, and always measured.
        processes: Number of parallel trainings, each on its share of the processor's cores.
        output_dir: New folder for the results; default: a new folder below runs/.
        resume: Resume the study in output_dir; finished trainings are kept and interrupted ones are resumed.
    """

    title: str
    base: PretrainSettings
    cells: dict[str, dict[str, Any]]
    variants: dict[str, dict[str, Any]]
    baseline: str
    learning_rates: list[float]
    tune: dict[str, Any] = field(default_factory=dict)
    seeds: list[int]
    panels: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    minutes: float | None = None
    projected_dims: list[int] = field(default_factory=list)
    sentence_file: list[str] | None = None
    english_file: list[str] | None = None
    measure_updates: bool = True
    processes: int = 1
    output_dir: str | None = None
    resume: bool = False


def rates_of(settings: dict[str, Any], variant: str) -> list[float]:
    """The learning rates that a variant tries.

    Args:
        settings: Settings of a study, from its results or `dataclasses.asdict`.
        variant: Name of the variant.
    """
    return settings["variants"][variant].get("learning_rates", settings["learning_rates"])


def cells_of(settings: dict[str, Any], variant: str) -> list[str]:
    """The cells that a variant is trained in: its own, those of the variant that it continues, or all."""
    return _own(settings, variant, "cells", [*settings["cells"]])


def cell_of_start(settings: dict[str, Any], variant: str, cell: str) -> str:
    """The cell in which the model of a variant was trained that another continues in a cell: the same, or its only."""
    cells = cells_of(settings, variant)
    return cell if cell in cells else cells[0]


def seeds_of(settings: dict[str, Any], variant: str, cell: str | None = None) -> list[int]:
    """The seeds that a variant is trained with: its own, those of the variant that it continues, or all.

    Args:
        settings: Settings of a study, from its results or `dataclasses.asdict`.
        variant: Name of the variant.
        cell: Name of a cell, which may have a selection of seeds; None: in any.
    """
    seeds = _own(settings, variant, "seeds", settings["seeds"])
    among = seeds if cell is None else settings["cells"][cell].get("seeds", seeds)
    return [seed for seed in seeds if seed in among]


def _own(settings: dict[str, Any], variant: str, name: str, everything: list[Any]) -> list[Any]:
    what = settings["variants"][variant]
    if name in what:
        return what[name]
    after = what.get("after")
    return everything if after is None else _own(settings, after, name, everything)


def where_tuned(settings: dict[str, Any]) -> tuple[str, int]:
    """Cell and seed in which learning rates are chosen."""
    tune = settings["tune"]
    return tune.get("cell", next(iter(settings["cells"]))), tune.get("seed", settings["seeds"][0])
