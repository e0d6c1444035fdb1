"""`linformer bench table2` on a few texts: the grid, its spread, costs, and settings rejected before any training."""

from __future__ import annotations

import json
import threading

import pytest
import torch

from linformer_kit.commands.cli import main
from linformer_kit.errors import DivergedError, OutOfMemoryError
from linformer_kit.experiments.paper import SCORES
from linformer_kit.experiments.quality import table2
from linformer_kit.experiments.quality.table2_cells import chosen_cells
from tests.conftest import fail, write_model, write_tasks

pytestmark = pytest.mark.e2e


@pytest.fixture
def models(tmp_path):
    kinds = ("linformer", "full")
    return [str(write_model(tmp_path / kind, "what train.tsv dev.tsv 0 1 2 3", attention=kind)) for kind in kinds]


@pytest.fixture
def here(monkeypatch, tmp_path):
    """No fresh processes, which take seconds to start, and a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(table2, "in_fresh_process", lambda function, *arguments: function(*arguments))


def test_the_grid(models, here, tmp_path, capsys):
    (tmp_path / "tasks").mkdir()
    options = ["--data_dir", str(write_tasks(tmp_path / "tasks")), "--tasks", "imdb", "qqp", "--one_seed", "imdb"]
    options += [
        "--seeds",
        "1",
        "2",
        "--learning_rates",
        "1e-3",
        "1e-2",
        "--num_train_epochs",
        "1",
        "--output_dir",
        str(tmp_path / "out"),
    ]
    main(["bench", "table2", "--models", *models, *options])
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("| model | parameters | IMDB | QQP |", "F1 of duplicates on QQP", "| full |"))
    results = json.loads((tmp_path / "out" / "table2.json").read_text())
    for model in ("linformer", "full"):
        for task in results["tasks"]:
            cells = [cell for cell in results["cells"] if (cell["model"], cell["task"]) == (model, task)]
            assert [cell["learning_rate"] for cell in cells] == [1e-3, 1e-2]
            seeds = sorted([run["seed"] for run in cell["runs"]] for cell in cells)
            assert seeds == ([[1], [1]] if task == "imdb" else [[1], [1, 2]])
    assert all(cell["peak_bytes"] < 2**31 and cell["parameters"] > 1000 for cell in results["cells"])
    before = (tmp_path / "out" / "table2.md").read_text()
    main(["bench", "table2", "--models", *models, *options, "--resume"])
    assert (tmp_path / "out" / "table2.md").read_text() == before


def options(tmp_path) -> list[str]:
    (tmp_path / "tasks").mkdir()
    usual = ["--data_dir", str(write_tasks(tmp_path / "tasks")), "--num_train_epochs", "1", "--tasks", "sst2"]
    return [*usual, "--output_dir", str(tmp_path / "out")]


def test_a_rate_that_diverges_is_noted_and_left(models, here, tmp_path, capsys):
    rates = ["--learning_rates", "1e30", "1e-3", "--bf16", "false", "--warmup_steps", "0"]
    main(["bench", "table2", "--models", models[0], *options(tmp_path), *rates])
    assert "Diverged: linformer, SST-2, 1e+30, seed 0." in capsys.readouterr().out
    cells = json.loads((tmp_path / "out" / "table2.json").read_text())["cells"]
    assert [(cell["learning_rate"], cell["diverged"], len(cell["runs"])) for cell in cells] == [
        (1e-3, False, 1),
        (1e30, True, 0),
    ]


def test_rates_of_e_and_f_are_tried_where_a_model_has_them(models, here, tmp_path, monkeypatch, capsys):
    seen, own = [], table2._finetune
    monkeypatch.setattr(table2, "_finetune", lambda settings, *how: seen.append(settings) or own(settings, *how))
    rates = ["--projection_learning_rate_factors", "0.25", "0"]
    main(["bench", "table2", "--models", *models, *options(tmp_path), *rates])
    tried = [(settings.model.rpartition("/")[2], settings.projection_learning_rate_factor) for settings in seen]
    assert tried == [("linformer", 0.25), ("linformer", 0), ("full", 0.25)]
    shown = capsys.readouterr().out
    assert "1 epoch, batch 16, E and F at 0.25 or 0 of the learning rate; seed 0." in shown
    assert "(5e-05 × 0, 5e-05 × 0.25)" in shown and "## Differences to linformer" in shown


def test_rates_are_compared_on_a_part_of_the_texts_and_the_best_is_trained_with_all(
    models, here, tmp_path, monkeypatch, capsys
):
    seen, own = [], table2._finetune

    def observed(settings, *how):
        found, memory = own(settings, *how)
        seen.append((settings.max_train_samples, settings.max_eval_samples, settings.learning_rate, settings.seeds))
        if settings.max_train_samples:  # the first rate is the better one here
            found["runs"][0]["metrics"]["accuracy"] = settings.learning_rate == 1e-3
        return found, memory

    monkeypatch.setattr(table2, "_finetune", observed)
    rates = ["--learning_rates", "1e-3", "1e-2", "--tuning_samples", "3", "--seeds", "1", "2"]
    command = ["bench", "table2", "--models", models[1], *options(tmp_path), *rates]
    main(command)
    assert seen == [
        (3, 3, 1e-3, [1]),
        (3, 3, 1e-2, [1]),
        (None, None, 1e-3, [1]),
        (None, None, 1e-3, [2]),
    ]
    shown = capsys.readouterr().out
    assert "compared with up to 3 texts" in shown and "| 0.001 (0.001, 0.01) |" in shown
    main([*command, "--resume"])
    assert len(seen) == 4
    assert "resume: expected tuning_samples as in" in fail(capsys, *command, "--resume", "--tuning_samples", "4")


def test_rates_are_compared_with_all_texts_where_there_are_no_more(models, here, tmp_path, monkeypatch):
    seen, own = [], table2._finetune
    monkeypatch.setattr(table2, "_finetune", lambda settings, *how: seen.append(settings) or own(settings, *how))
    rates = ["--learning_rates", "1e-3", "1e-2", "--tuning_samples", "1000"]
    main(["bench", "table2", "--models", models[1], *options(tmp_path), *rates])
    assert [(settings.max_train_samples, settings.learning_rate) for settings in seen] == [(None, 1e-3), (None, 1e-2)]


def test_several_trainings_at_a_time(models, here, tmp_path, monkeypatch, capsys):
    """Each waits for the other, and has its share of the threads."""
    both, alone, own = threading.Barrier(2, timeout=60), threading.Lock(), table2._finetune
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)

    def met(settings, threads, quiet):
        both.wait()
        assert (threads, quiet) == (3, True)
        with alone:  # transformers has global state, which two threads would spoil
            return own(settings, 1, False)

    monkeypatch.setattr(table2, "_finetune", met)
    main(["bench", "table2", "--models", *models, *options(tmp_path), "--processes", "2"])
    cells = json.loads((tmp_path / "out" / "table2.json").read_text())["cells"]
    assert [cell["model"] for cell in cells] == ["linformer", "full"]
    assert "Measured with 2 trainings at a time, each with 3 of the threads." in capsys.readouterr().out


def test_a_training_that_ends_beside_a_failed_one_is_kept(models, here, tmp_path, monkeypatch):
    begun, own = threading.Event(), table2._finetune

    def fail_first(settings, *how):
        if "linformer" in settings.model:
            begun.wait(60)
            raise OutOfMemoryError("a process was killed")
        begun.set()
        return own(settings, *how)

    monkeypatch.setattr(table2, "_finetune", fail_first)
    with pytest.raises(SystemExit):
        main(["bench", "table2", "--models", *models, *options(tmp_path), "--processes", "2"])
    assert [cell["model"] for cell in json.loads((tmp_path / "out" / "table2.json").read_text())["cells"]] == ["full"]


def test_where_the_best_rate_of_the_tuning_diverges_with_all_texts_the_next_is_trained(
    models, here, tmp_path, monkeypatch
):
    own = table2._finetune

    def diverging(settings, *how):
        if settings.max_train_samples is None and settings.learning_rate == 1e-3:
            raise DivergedError("diverged")
        found, memory = own(settings, *how)
        found["runs"][0]["metrics"]["accuracy"] = -settings.learning_rate
        return found, memory

    monkeypatch.setattr(table2, "_finetune", diverging)
    rates = ["--learning_rates", "1e-3", "1e-2", "2e-2", "--tuning_samples", "3"]
    main(["bench", "table2", "--models", models[1], *options(tmp_path), *rates])
    results = json.loads((tmp_path / "out" / "table2.json").read_text())
    assert chosen_cells(results)["full", "sst2"]["learning_rate"] == 1e-2 and results["complete"]


def test_a_later_seed_that_diverges_leaves_the_first(models, here, tmp_path, monkeypatch, capsys):
    own = table2._finetune

    def diverging(settings, *how):
        if settings.seeds == [2]:
            raise DivergedError("diverged")
        return own(settings, *how)

    monkeypatch.setattr(table2, "_finetune", diverging)
    main(["bench", "table2", "--models", models[1], *options(tmp_path), "--seeds", "1", "2"])
    (cell,) = json.loads((tmp_path / "out" / "table2.json").read_text())["cells"]
    assert cell["diverged"] and [run["seed"] for run in cell["runs"]] == [1]
    shown = capsys.readouterr().out
    assert "(1 of 2 seeds)" in shown and "Diverged: full, SST-2, 5e-05, seed 2." in shown


@pytest.mark.parametrize("tuning", [[], ["--tuning_samples", "3"]])
def test_rates_of_earlier_results_are_compared_with_new_ones(tuning, models, here, tmp_path, monkeypatch):
    own = table2._finetune

    def better_if_higher(settings, *how):
        found, memory = own(settings, *how)
        found["runs"][0]["metrics"]["accuracy"] = settings.learning_rate
        return found, memory

    monkeypatch.setattr(table2, "_finetune", better_if_higher)
    command = ["bench", "table2", "--models", models[1], *options(tmp_path), *tuning, "--resume", "--learning_rates"]
    main([*command, "1e-2"])
    main([*command, "1e-3", "--seeds", "0", "1"])
    chosen = chosen_cells(json.loads((tmp_path / "out" / "table2.json").read_text()))["full", "sst2"]
    assert (chosen["learning_rate"], [run["seed"] for run in chosen["runs"]]) == (1e-2, [0, 1])


def test_it_goes_on_after_an_interruption_of_the_first_cell_but_not_as_another(
    models, here, tmp_path, monkeypatch, capsys
):
    command = ["bench", "table2", "--models", models[0], *options(tmp_path)]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, SystemExit)):
        patch.setattr(table2, "_finetune", interrupted)
        main(command)
    main([*command, "--resume"])
    capsys.readouterr()
    assert "resume: expected num_train_epochs as in" in fail(capsys, *command, "--resume", "--num_train_epochs", "2")
    named = [*command, "--models", models[1], "--names", "linformer", "--resume"]
    assert "resume: expected the model linformer of" in fail(capsys, *named)
    main([*command, "--resume", "--models", *models])
    assert len(json.loads((tmp_path / "out" / "table2.json").read_text())["cells"]) == 2
    for given, order in (
        (models[1:], ["linformer", "full"]),
        (reversed(models), ["full", "linformer"]),  # the order of now where all are given
        (models[:1], ["full", "linformer"]),  # the other model stays in the results, and its name stays taken
    ):
        main([*command, "--resume", "--models", *given])
        assert list(json.loads((tmp_path / "out" / "table2.json").read_text())["models"]) == order
    assert "| full |" in capsys.readouterr().out
    named = [*command, "--models", models[0], "--names", "full", "--resume"]
    assert "resume: expected the model full of" in fail(capsys, *named)


def test_other_texts_and_another_configuration_are_not_resumed(models, here, tmp_path, capsys):
    command = ["bench", "table2", "--models", models[0], *options(tmp_path)]
    main(command)
    texts = tmp_path / "tasks" / "sst2" / "dev.tsv"
    before = texts.read_text()
    texts.write_text(f"{before}another text\t1\n")
    assert "resume: expected the texts of sst2 of" in fail(capsys, *command, "--resume")
    texts.write_text(before)
    config = json.loads((tmp_path / "linformer" / "config.json").read_text())
    (tmp_path / "linformer" / "config.json").write_text(json.dumps(config | {"shorter_input": "stretch"}))
    assert "resume: expected the model linformer of" in fail(capsys, *command, "--resume")


def test_what_is_done_is_kept_where_a_process_is_killed(models, here, tmp_path, monkeypatch, capsys):
    command = ["bench", "table2", "--models", *models, *options(tmp_path)]
    own = table2._finetune

    def killed(settings, *how):
        if "full" in settings.model:
            raise OutOfMemoryError("a process was killed")
        return own(settings, *how)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as exit_:
        patch.setattr(table2, "_finetune", killed)
        main(command)
    assert exit_.value.code == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(
        "linformer: error: a process was killed; lower processes (1) or per_device_train_batch_size (16) or "
    )
    assert error.endswith("; --resume continues from what is saved")
    done = json.loads((tmp_path / "out" / "table2.json").read_text())["cells"]
    assert [cell["model"] for cell in done] == ["linformer"]
    main([*command, "--resume"])
    assert json.loads((tmp_path / "out" / "table2.json").read_text())["cells"][:1] == done


def test_the_cache_is_where_it_is_asked_for_and_not_among_the_results(models, here, tmp_path):
    main(["bench", "table2", "--models", models[0], *options(tmp_path), "--cache_dir", str(tmp_path / "own")])
    assert any((tmp_path / "own" / "labelled").iterdir()) and not (tmp_path / "cache").exists()
    assert json.loads((tmp_path / "out" / "table2.json").read_text())["settings"].get("cache_dir") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "{0}", "{0}"], "names: expected different names for the models, got linformer, linformer"),
        (["--models", "{0}", "--names", "a", "b"], "names: expected 1, one for each model, got 2"),
        (["--models", "{0}", "--names", "a/../../x"], "names: expected valid folder names, got 'a/../../x'"),
        (["--models", "{0}", "--learning_rates", "-1"], "learning_rate: expected 0 or more, got -1.0"),
        (["--models", "{0}", "--data_dir", "/none/there"], "data_dir: no such file or folder: /none/there"),
        (["--models", "{0}", "--tasks", "cola"], "tasks: expected some of sst2, imdb, qnli, qqp, got cola"),
        (["--models", "{0}", "/none/there"], "model: expected a folder, got /none/there, which does not exist"),
        (["--models", "{0}", "--processes", "0"], "processes: expected 1 or more, got 0"),
        (["--models", "{0}", "--tuning_samples", "0"], "tuning_samples: expected 1 or more, got 0"),
        (
            ["--models", "{0}", "--tuning_samples", "5", "--max_train_samples", "4"],
            "tuning_samples: expected max_train_samples 4 or less, got 5",
        ),
        (["--models", "{0}", "--seeds", "1", "1"], "seeds: expected one or more, each once, got [1, 1]"),
    ],
)
def test_bad_input_is_one_line(models, options, message, tmp_path, capsys):
    folder = tmp_path / "out"
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "table2", *(option.format(*models) for option in options), "--output_dir", str(folder)])
    assert exit_.value.code == 2 and message in capsys.readouterr().err
    assert not folder.exists()


def test_the_papers_averages():
    """As printed in the paper, to detect typing errors in the table."""
    printed = (92.25, 91.75, 91.85, 91.83, 92.08, 92.03, 92.30, 91.90, 90.45, 91.90, 91.83, 92.18)
    for scores, average in zip(SCORES.values(), printed, strict=True):
        assert sum(scores) / 4 == pytest.approx(average, abs=0.0051)
