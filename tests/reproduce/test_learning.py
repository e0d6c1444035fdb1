"""The studies of what learns: their settings are valid, losses and chosen rates by hand, a small run."""

from __future__ import annotations

import math

import pytest

from reproduce import figure3, learning
from reproduce.learning import STUDIES, Study, Variant
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
    full = Variant(learning.FULL, (1e-3, 3e-3))
    variants = {"Transformer": full, "Linformer": Variant({}, (1e-3,), (0,)), "pooling": Variant({}, (2e-3,), ())}
    monkeypatch.setitem(STUDIES, "small", Study("Small", small, variants, minutes=0.5, trial=0.25))
    monkeypatch.setattr(learning, "_TIMED", 2)
    measured = learning.seconds_of_updates

    def seconds_of_updates(values):
        assert [len(seconds) for seconds in measured(values).values()] == [2, 2, 2]
        return {label: [1.0, 15.0, 40.0] for label in values}

    monkeypatch.setattr(learning, "seconds_of_updates", seconds_of_updates)
    options = ("--studies", "small", "--train_file", corpus, "--hidden_size", 16, "--seeds", 0, 1)
    content = start(learning, tmp_path / "out", *options)
    timed, *records = content["records"]
    assert timed == {"timed": "small", "seconds": {label: [1.0, 15.0, 40.0] for label in variants}}
    trials = [record for record in records if record["minutes"] == 0.25]
    assert {record["updates"] for record in trials} == {1} and {record["seed"] for record in trials} == {0}
    tried = [(record["variant"], record["learning_rate"]) for record in trials]
    assert tried == [("Transformer", 1e-3), ("Transformer", 3e-3), ("pooling", 2e-3)]
    best = min(trials[:2], key=lambda record: record["loss"])["learning_rate"]
    trained = [(record["variant"], record["learning_rate"], record["seed"]) for record in records[3:]]
    expected = [(label, rate, seed) for seed in (0, 1) for label, rate in (("Transformer", best), ("Linformer", 1e-3))]
    assert trained == expected
    assert {record["updates"] for record in records[3:]} == {2}  # half a minute
    text = capsys.readouterr().out
    assert "## Small" in text and "0.5 minutes of training each" in text and "minus Transformer" in text
    assert "first seed, 0.25 minutes each:" in text and f"| pooling | – | {trials[2]['loss']:.3f} | – |" in text
    assert (tmp_path / "out" / "learning.png").exists()
    model = tmp_path / "out" / "trainings" / "small" / "Linformer,_0.001,_seed_1" / "model.safetensors"
    assert model.exists()  # far_context.py reads it
    assert start(learning, tmp_path / "out", *options)["records"] == content["records"]


@pytest.mark.slow
def test_a_small_figure3(corpus, tmp_path, monkeypatch, capsys):
    """All begin with one Transformer, which is made longer and linear."""
    monkeypatch.setattr(figure3, "_START_LENGTH", 16)
    monkeypatch.setattr(figure3, "_TOKENS", 64)
    for name, changes in (("Transformer", learning.FULL), ("k 32", {"projected_dim": 4})):
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
