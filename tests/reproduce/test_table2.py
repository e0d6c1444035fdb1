"""Table 2 on a few texts: rates, seeds, the words alone, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from linformer_cli.settings import FinetuneSettings
from linformer_kit.data.labelled import load_labelled
from reproduce import table2
from tests.conftest import write_model
from tests.reproduce import started


def write_data_sets(folder: Path, count: int = 4) -> None:
    """Data sets with the columns of those on the hub, which have numbers as classes."""
    for name, task in table2.TASKS.items():
        for split in ("train", task.validation):
            rows = [{column: f"what {n}" for column in task[2:4] if column} | {"label": n % 2} for n in range(count)]
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Runs the script with a Linformer and a Transformer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kinds = ("linformer", "full")
    models = [str(write_model(tmp_path / kind, "what 0 1 2 3", attention=kind)) for kind in kinds]
    write_data_sets(tmp_path / "hub")
    tasks = {name: task._replace(data_set=(str(tmp_path / "hub" / name), None)) for name, task in table2.TASKS.items()}
    monkeypatch.setattr(table2, "TASKS", tasks)

    def start(*options: str) -> list[dict]:
        return started.start(table2, tmp_path / "out", "--models", *models, *options)["records"]

    return start


@pytest.mark.e2e
def test_table_and_figure(start, tmp_path, capsys):
    options = ("--tasks", "qqp", "--seeds", "1", "2", "--learning_rates", "1e-3", "1e-2")
    records = start(*options)
    for model in ("linformer", "full"):
        assert sorted(each["seed"] for each in records if each["model"] == model and "seed" in each) == [1, 1, 2]
    shown = capsys.readouterr().out
    assert "| model | parameters | QQP | average |" in shown
    assert "## Differences to linformer" in shown and "| words alone | – | " in shown
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"table2.json", "table2.md", "table2.png"}
    assert start(*options) == records  # nothing is trained again


def test_words_alone_know_no_order_and_shared_words_only_if_marked(tmp_path):
    """Pairs whose class is whether they share a word, and texts whose class is a word."""
    pairs = [(f"w{n % 7} a", f"w{(n % 7 + n % 2 * (1 + n % 5)) % 7} a", n % 2) for n in range(70)]
    rows = ["text,other,label", *(f"{one},{other},{label}" for one, other, label in pairs)]
    (tmp_path / "pairs.csv").write_text("\n".join(rows) + "\n")
    files = [str(tmp_path / "pairs.csv")]
    settings = FinetuneSettings(model="", train_file=files, validation_file=files, text_pair_column="other")
    texts = load_labelled(settings)
    alone, shared = (table2.accuracy_of_words(texts, shared=shared) for shared in (False, True))
    assert shared["accuracy"] == 1.0 > alone["accuracy"]
    assert (shared["train"], shared["validation"]) == (70, 70)
