"""The studies of what learns, at a tiny size."""

from __future__ import annotations

import math

import pytest

from reproduce import figure3, learning
from reproduce.studies import FULL, STUDIES, Study, Variant
from tests.conftest import write_corpus
from tests.reproduce.started import start


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "texts").mkdir()
    return write_corpus(tmp_path / "texts")


@pytest.mark.e2e
def test_a_small_study_in_equal_time(corpus, tmp_path, capsys, monkeypatch):
    """Rates are tried for a short time with the first seed, seeds follow at the best; updates are what fits in."""
    small = {"vocab_size": 277, "max_position_embeddings": 16, "projected_dim": 4, "per_device_train_batch_size": 2}
    variants = {"Transformer": Variant(FULL, (1e-3, 3e-3)), "pooling": Variant({}, (2e-3,), ())}
    monkeypatch.setitem(STUDIES, "small", Study("Small", small, variants, minutes=0.5, trial=0.25))
    seconds = {"Transformer": [1.0, 15.0, 40.0], "pooling": [1.0, 15.0, 40.0]}
    monkeypatch.setattr(learning, "seconds_of_updates", lambda values: {label: seconds[label] for label in values})
    options = ("--studies", "small", "--train_file", corpus, "--hidden_size", 16, "--seeds", 0, 1)
    content = start(learning, tmp_path / "out", *options)
    timed, *records = content["records"]
    assert timed == {"timed": "small", "seconds": seconds}
    found = [(each["variant"], each["seed"], each["minutes"], each["updates"]) for each in records]
    trials = [("Transformer", 0, 0.25, 1)] * 2 + [("pooling", 0, 0.25, 1)]
    assert found == [*trials, ("Transformer", 0, 0.5, 2), ("Transformer", 1, 0.5, 2)]
    best = min(records[:2], key=lambda record: record["loss"])["learning_rate"]
    assert [each["learning_rate"] for each in records] == [1e-3, 3e-3, 2e-3, best, best]
    text = capsys.readouterr().out
    assert "0.5 minutes of training each" in text and f"| pooling | – | {records[2]['loss']:.3f} | – |" in text
    model = tmp_path / "out" / "trainings" / "small" / f"Transformer,_{best},_seed_1" / "model.safetensors"
    assert model.exists() and (tmp_path / "out" / "learning.png").exists()  # far_context.py reads the model
    assert start(learning, tmp_path / "out", *options)["records"] == content["records"]


@pytest.mark.slow
def test_a_small_figure3(corpus, tmp_path, monkeypatch, capsys):
    """All begin with one Transformer, which is made longer and linear."""
    monkeypatch.setattr(figure3, "_START_LENGTH", 16)
    monkeypatch.setattr(figure3, "_TOKENS", 64)
    for name, changes in (("Transformer", FULL), ("k 32", {"projected_dim": 4})):
        monkeypatch.setitem(figure3.LINES, name, figure3.Line(changes, (32, 512), (0, 1)))
    monkeypatch.setitem(figure3.PANELS, "(a) n 512", [("Transformer", 32), ("k 32", 32)])
    options = ("--lines", "Transformer", "k 32", "--lengths", 32, "--seeds", 0, "--train_file", corpus)
    options += ("--max_steps", 12, "--warmup_steps", 1, "--start_steps", 12, "--hidden_size", 16)
    options += ("--vocab_size", 277)
    content = start(figure3, tmp_path / "out", *options)
    start_, full, linear = content["records"]
    assert (start_["line"], full["line"], linear["line"]) == ("start", "Transformer", "k 32")
    assert start_["seq_len"] == 16 and full["seq_len"] == linear["seq_len"] == 32
    assert full["curve"][0][1] < start_["curve"][0][1]  # it begins where the start ended
    assert linear["parameters"] == full["parameters"] + 4 * 2 * 4 * 4 * 32  # E and F by layer and head
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| k 32 |"))
    assert f"{math.exp(linear['loss']):.0f}" in row and f"{linear['loss'] - full['loss']:+.3f}" in row
    assert (tmp_path / "out" / "figure3.png").exists()
    assert len(linear["curve"]) == 13 and not (tmp_path / "out" / "trainings" / "k_32,_n_32,_seed_0" / "start").exists()


def test_figure3_shows_no_panel_whose_lines_another_one_has():
    def records(*lines):
        curve = [[0, 5.0], [10, 4.0]]
        return {"records": [{"line": line, "n": 512, "seed": 0, "loss": 4.0, "curve": curve} for line in lines]}

    def titles(*lines):
        return [axes.get_title() for axes in figure3.draw(records(*lines)).axes]

    assert titles("Transformer", "k 128") == ["(a) n 512"]
    assert titles("Transformer", "k 128", "headwise, pooling") == ["(c) n 512, k 128, sharing"]
    assert titles("Transformer", "k 256", "recommended") == ["(a) n 512", "(e) n 512, k 128, recommended"]
    assert figure3.draw(records()) is None
