"""Studies that are refused before any training, and the recipes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from linformer_kit.commands.parser import parse
from linformer_kit.commands.table import RECIPES
from linformer_kit.errors import InputError
from linformer_kit.experiments.learning import checks, learn
from linformer_kit.operator.projections.starts import STARTS
from linformer_kit.settings.study import LearningSettings
from tests.experiments.learning.studies import study

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def refused(settings: LearningSettings, tmp_path: Path, message: str) -> None:
    with pytest.raises(InputError) as error:
        learn.learn(dataclasses.replace(settings, output_dir=str(tmp_path / "out")))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "half"}, "baseline: expected one of full, E, F, grown, got half"),
        ({"seeds": []}, "seeds: expected at least one, got none"),
        ({"seeds": [1, 1]}, "seeds: expected a list of different numbers from 0 to 4294967295, got [1, 1]"),
        ({"seeds": [-1]}, "seeds: expected a list of different numbers from 0 to 4294967295, got [-1]"),
        ({"learning_rates": [1e-3, 1e-3]}, "learning_rates: expected a list of different numbers above 0"),
        ({"learning_rates": [0.0]}, "learning_rates: expected a list of different numbers above 0, got [0.0]"),
        ({"projected_dims": [0]}, "projected_dims: expected 1 or more, got [0]"),
        ({"minutes": -3}, "minutes: expected more than 0, got -3"),
        ({"processes": 0}, "processes: expected 1 or more, got 0"),
        ({"tune": {"cell": "none"}}, "tune.cell: expected one of short, lo/ng, got none"),
        ({"tune": {"cell": ["none"]}}, "tune.cell: expected one of short, lo/ng, got ['none']"),
        ({"tune": {"cel": "short"}}, "tune: expected cell and seed, got cel"),
        ({"tune": {"seed": -1}}, "tune.seed: expected 0 to 4294967295, got -1"),
        ({"panels": {"a": {"cells": ["short"]}}}, "panels.a: expected cells and variants, got cells"),
        (
            {"panels": {"a": {"cells": ["short"], "variants": ["half"]}}},
            "panels.a.variants: expected one or more of full, E, F, grown, each once, got ['half']",
        ),
        (
            {
                "variants": {"full": {}, "one": {"cells": ["short"]}},
                "baseline": "full",
                "tune": {"cell": "short"},
                "panels": {"a": {"cells": ["lo/ng"], "variants": ["one"]}},
            },
            "panels.a.cells: expected one of short for one, which is trained there, got ['lo/ng']",
        ),
        ({"english_file": None}, "english_file: expected files of English text for the cells, got none"),
        ({"english_file": ["nowhere.txt"]}, "english_file"),
        ({"sentence_file": ["nowhere.tsv"]}, "sentence_file"),
        ({"cells": {"short": {"english": 1}}}, "cells.short.english: expected true or false, got 1"),
        ({"cells": {"short": {"seeds": [3]}}}, "cells.short.seeds: expected some of [1, 2], got [3]"),
        ({"cells": {"short": {"x.y": 3}}}, "cells.short.x.y: expected a setting of linformer pretrain"),
        ({"cells": {"short": {"seed": 3}}}, "cells.short.seed: expected a setting not fixed by the study, got seed"),
        ({"base": {"mlm_probability": 2.0}}, "mlm_probability: expected more than 0 and less than 1, got 2.0"),
        (
            {"base": {"compare_full": True}},
            "base.compare_full: expected False (the study determines it), got True",
        ),
    ],
)
def test_studies_refused(corpus, tmp_path, changes, message):
    refused(study(corpus, **changes), tmp_path, message)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"model.atention": "full"}, "variants.full.model.atention: expected a setting of linformer pretrain"),
        ({"model.attention": "half"}, "half"),
        (
            {"model": {"hidden_size": 3}},
            "variants.full.model: expected a setting of linformer pretrain, got an unknown",
        ),
        ({"model": 3}, "variants.full.model: expected a setting of linformer pretrain, got an unknown"),
        ({"max_steps": "many"}, "max_steps"),
        ({"learning_rate": 0.5}, "variants.full.learning_rate: expected a setting not fixed by the study"),
        ({"from_model": "x"}, "variants.full.from_model: expected a setting not fixed by the study"),
        (
            {"learning_rates": 4e-3},
            "variants.full.learning_rates: expected a list of different numbers above 0, got 0.004",
        ),
        ({"learning_rates": []}, "variants.full.learning_rates: expected a list of different numbers above 0, got []"),
        ({"seeds": 1}, "variants.full.seeds: expected a list of different numbers from 0 to 4294967295, got 1"),
        ({"seeds": [3]}, "variants.full.seeds: expected some of [1, 2], got [3]"),
        ({"minutes": "3x"}, "variants.full.minutes: expected more than 0, got 3x"),
        ({"minutes": float("inf")}, "variants.full.minutes: expected more than 0, got inf"),
        ({"after": "b", "learning_rates": [1e-3]}, "variants.full.after: expected another variant, got b"),
        ({"after": ["b"]}, "variants.full.after: expected another variant, got ['b']"),
        ({"after": "full", "learning_rates": [1e-3]}, "variants: expected `after` without cycles, got a cycle"),
        ({"after": "c"}, "variants.full.learning_rates: expected one, with `after`, got [0.001, 0.01]"),
        (
            {"after": "c", "learning_rates": [1e-3], "model.projected_dim": 5},
            "variants.full.after: expected a variant with full attention, as this one has settings of the model, got one w",
        ),
        ({"resize_to": 46}, "resize_to: expected none without `after`, got 46"),
        ({"elastic_projected_dims": [8]}, "elastic_projected_dims: expected one or more, each 1 to 7"),
    ],
)
def test_variants_refused(corpus, tmp_path, what, message):
    refused(study(corpus, variants={"full": what, "c": {}}), tmp_path, message)


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        (
            {"full": {}, "one": {"cells": ["short"]}, "more": {"after": "one", "cells": ["lo/ng"]}},
            "variants.more.cells: expected some of ['short'], those of one, got ['lo/ng']",
        ),
        (
            {"full": {"learning_rates": [1e-3, 1e-2], "cells": ["lo/ng"]}},
            "variants.full.cells: expected short among them, where its learning rates are tried, got ['lo/ng']",
        ),
        (
            {"full": {"cells": ["short", "shor"]}},
            "variants.full.cells: expected one or more of short, lo/ng, each once, got ['short', 'shor']",
        ),
        (
            {"full": {"cells": ["short", "short"]}},
            "variants.full.cells: expected one or more of short, lo/ng, each once, got ['short', 'short']",
        ),
        (
            {"full": {}, "more": {"after": "one"}, "one": {"seeds": [2, 3]}, "most": {"after": "one", "seeds": [1]}},
            "variants.most.seeds: expected some of [2, 3], those of one, got [1]",
        ),
        (
            {"full": {}, "one": {"seeds": [1]}},
            "variants.one.seeds: expected some of those of cell lo/ng, got [1]",
        ),
        (
            {"full": {"model.attention": "full"}, "more": {"after": "full", "model.hidden_size": 66}},
            "variants.more.model.hidden_size: expected 33, as `after` has, got 66",
        ),
        (
            {
                "full": {"model.attention": "full"},
                "more": {"after": "full", "model.max_position_embeddings": 11, "resize_mode": "extend"},
            },
            "variants.more.model.max_position_embeddings: expected 23 or more with resize_mode extend, got 11",
        ),
        (
            {
                "full": {},
                "more": {"after": "full", "resize_to": 46},
                "most": {"after": "more", "model.sharing": "none"},
            },
            "variants.most.after: expected a variant with full attention, as this one has settings of the model",
        ),
        (
            {"full": {"model.attention": "full"}, "more": {"after": "full", "model.projected_dim": 5, "resize_to": 46}},
            "resize_to: expected none where the model is converted (to its cell's n), got 46",
        ),
        ({"full": {"seeds": [2]}}, "variants.full.seeds: expected all of [1, 2, 3] for the baseline, got [2]"),
    ],
)
def test_seeds_and_cells_that_are_missing(corpus, tmp_path, variants, message):
    cells = {"short": {}, "lo/ng": {"model.max_position_embeddings": 29, "seeds": [2, 3]}}
    settings = study(corpus, variants=variants, cells=cells, seeds=[1, 2, 3], learning_rates=[1e-3])
    refused(settings, tmp_path, message)


@pytest.mark.parametrize("name", [path.stem for path in (RECIPES / "learning").glob("[!_]*.yaml")])
def test_variants_start_as_their_names_say(name):
    """Whatever the default is; a recipe may say it for all of its variants."""
    settings = parse(["bench", "learning", "--recipe", name])[1]
    own = yaml.safe_load((RECIPES / "learning" / f"{name}.yaml").read_text()).get("base", {}).get("model", {})
    for trial in checks.one_of_each_kind(dataclasses.replace(settings, english_file=["x"])):
        said = [start for start in STARTS if start in trial.variant.replace(",", "").split()]
        shifted = trial.variant.startswith("linear")
        default = "shifted_pooling" if shifted else own.get("projection_initializer", "pooling")
        assert trial.settings.model.projection_initializer == (said or [default])[0]


@pytest.mark.parametrize("path", sorted((RECIPES / "learning").glob("[a-z]*.yaml")), ids=lambda path: path.stem)
def test_recipes_are_whole(path, tmp_path):
    """Each parses, every training of it could start, and the header has all fields."""
    (tmp_path / "text.txt").write_text("English")
    settings = parse(["bench", "learning", "--recipe", path.stem, "--english_file", str(tmp_path)])[1]
    checks.check(settings)
    header = path.read_text().split("\ntitle:")[0]
    for word in (path.stem, "Paper:", "Hardware:", "Time:", f"linformer bench learning --recipe {path.stem}"):
        assert word in header


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("learning-*/learning.json")), ids=lambda path: path.parent.name)
def test_committed_trainings_are_those_that_the_recipes_ask_for(path, tmp_path):
    """So a study resumed with the current recipe keeps them: no changed default has changed their meaning."""
    results = json.loads(path.read_text())
    own = path.with_name("recipe.yaml")
    recipe = str(own) if own.exists() else path.parent.name.removeprefix("learning-").partition("_")[0]
    names = results["settings"].get("english_file") or ["one.txt"]
    for name in names:
        (tmp_path / name).write_text("English")
    texts = [str(tmp_path / name) for name in names]
    arguments = ["--recipe", recipe, "--english_file", *texts, "--base.cache_dir", str(tmp_path)]
    kinds = {trial.kind for trial in checks.one_of_each_kind(parse(["bench", "learning", *arguments])[1])}
    assert {entry["kind"] for entry in results["trials"]} <= kinds
