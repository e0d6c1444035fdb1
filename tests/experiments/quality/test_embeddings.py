"""Sentence embedders compared with their teacher, and rejected settings."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import transformers

from linformer_kit import linearize
from linformer_kit.commands.cli import main
from linformer_kit.errors import OutOfMemoryError
from linformer_kit.experiments.quality import embeddings
from linformer_kit.inference import embedder
from linformer_kit.settings.bench import EmbeddingsSettings
from tests.conftest import PRETRAIN_SIZES, fail, write_tasks, write_teacher

LENGTH = PRETRAIN_SIZES["max_position_embeddings"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    teacher = write_teacher(folder / "teacher", "it 's good bad train dev 0 1 2 3 text", "RobertaModel")
    student = folder / "student"
    main(["convert", str(teacher), str(student), "--in_place", "--projected_dim", "3", "--sliding_window", "2"])
    return teacher, student


@pytest.mark.e2e
def test_command(models, tmp_path, capsys):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(5):
        (texts / f"{number}.txt").write_text(f"it 's good {number} " * 40)
    (tmp_path / "tasks").mkdir()
    write_tasks(tmp_path / "tasks")
    out = tmp_path / "out"
    options = [
        "--tasks",
        "sst2",
        "qqp",
        "--data_dir",
        str(tmp_path / "tasks"),
        "--text_file",
        str(texts),
        "--samples",
        "4",
    ]
    options += ["--cosine_lengths", "5", str(LENGTH), "--lengths", str(LENGTH), str(2 * LENGTH), "--tokens", "46"]
    options += ["--repetitions", "2", "--memory", "false", "--output_dir", str(out), "--bf16", "false"]
    main(["bench", "embeddings", "--models", *map(str, models), *options])
    results = json.loads((out / "embeddings.json").read_text())
    teacher, student = results["models"].values()
    assert results["complete"] and list(results["models"]) == ["teacher", "student"]
    assert teacher["cosine"]["5"]["mean"] == pytest.approx(1) and teacher["cosine"][str(LENGTH)]["least"] > 0.999
    assert 0 < student["cosine"][str(LENGTH)]["mean"] < 0.9999
    for found in (teacher, student):
        assert found["accuracy"].keys() == {"sst2", "qqp"} and all(
            0 <= share <= 1 for share in found["accuracy"].values()
        )
        assert found["cost"].keys() == {str(LENGTH), str(2 * LENGTH)}
        assert all(cost["runs"] == 2 and cost["peak_bytes"] is None for cost in found["cost"].values())
    assert "/" not in "".join(results["settings"]["models"])
    printed = capsys.readouterr().out
    assert printed.startswith((out / "embeddings.md").read_text())
    assert f"| student | {student['accuracy']['sst2']:.4f} (" in printed


@pytest.mark.slow
def test_memory_is_measured_in_processes_of_their_own(models, tmp_path):
    options = ["--lengths", str(LENGTH), "--tokens", "46", "--repetitions", "1", "--output_dir", str(tmp_path / "out")]
    main(["bench", "embeddings", "--models", str(models[0]), *options])
    (found,) = json.loads((tmp_path / "out" / "embeddings.json").read_text())["models"].values()
    assert found["cost"][str(LENGTH)]["peak_bytes"] >= 0


@pytest.mark.e2e
def test_everything_runs_on_the_device_that_the_results_name(models, monkeypatch):
    """On the meta device instead of an accelerator: a pass with tensors on another device fails there too."""
    device = torch.device("meta")
    seen = []
    for module in (embeddings, embedder):
        monkeypatch.setattr(module, "best_device", lambda: device)
    monkeypatch.setattr(torch, "autocast", lambda kind, *_, **__: seen.append(torch.device(kind)) or nullcontext())
    settings = EmbeddingsSettings(models=[str(model) for model in models], tokens=46, bf16="true")
    embedders = {name: embedder.load_embedder(name, settings) for name in settings.models}

    def interleaved(cases, *, device, **_):
        seen.append(device)
        return {name: [run()[0].device] for name, run in cases.items()}

    monkeypatch.setattr(embeddings, "interleaved", interleaved)
    for length in (LENGTH, 2 * LENGTH):
        assert embeddings._times(embedders, length, settings) == {name: [device] for name in settings.models}
    monkeypatch.setattr(embeddings, "peak_bytes", lambda run, device: (run()[0].device, device))
    assert embeddings._peak(settings.models[1], LENGTH, settings, 1) == (device, device)
    student = embedders[settings.models[1]]

    def looked_at(module, arguments):
        seen.append(arguments[0].device)
        raise InterruptedError  # what follows needs numbers

    student.model.get_input_embeddings().register_forward_pre_hook(looked_at)
    with pytest.raises(InterruptedError):
        student.embed(["it 's good"], "texts")
    assert set(seen) == {device}


@pytest.mark.gpu
def test_an_accelerator_that_is_named_is_used(models, tmp_path):
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    options = ["--tasks", "sst2", "--data_dir", str(write_tasks(tasks)), "--output_dir", str(tmp_path / "out")]
    options += ["--lengths", str(LENGTH), str(2 * LENGTH), "--tokens", "46", "--repetitions", "1"]
    main(["bench", "embeddings", "--models", *map(str, models), *options])
    results = json.loads((tmp_path / "out" / "embeddings.json").read_text())
    assert results["environment"]["device_type"] == torch.accelerator.current_accelerator().type
    assert torch.accelerator.max_memory_allocated() > 0
    assert all(cost["peak_bytes"] > 0 for found in results["models"].values() for cost in found["cost"].values())


def test_times_are_kept_where_memory_runs_out(models, tmp_path, monkeypatch, capsys):
    def killed(*_):
        raise OutOfMemoryError("a process was killed")

    monkeypatch.setattr(embeddings, "in_fresh_process", killed)
    options = ["--lengths", str(LENGTH), "--tokens", "46", "--repetitions", "1", "--output_dir", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "embeddings", "--models", str(models[0]), *options])
    assert exit_.value.code == 1
    expected = f"a process was killed; lower batch_size (16) or tokens (46) or lengths ([{LENGTH}])\n"
    assert capsys.readouterr().err.endswith(expected)
    (found,) = json.loads((tmp_path / "out" / "embeddings.json").read_text())["models"].values()
    assert found["cost"][str(LENGTH)]["median_s"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--names", "one"], "names: expected 2 different names, got ['one']"),
        (["--tasks", "sst2"], "data_dir: expected the folder of the tasks, got none"),
        (["--lengths", "0"], "lengths: expected 1 to 16,777,216 each, got [0]"),
        (["--lengths", "99999999999"], "lengths: expected 1 to 16,777,216 each, got [99999999999]"),
        (["--names", "a", "a", "b"], "names: expected 2 different names, got ['a', 'a', 'b']"),
        (["--cosine_lengths", "[]"], "cosine_lengths: expected one or more with text_file, got none"),
        (["--cosine_lengths", "2"], "cosine_lengths: expected at least 3, got 2"),
        (["--cosine_lengths", "64"], f"cosine_lengths: expected at most {LENGTH} (the limit of teacher), got 64"),
        (["--repetitions", "0"], "repetitions: expected 1 or more, got 0"),
    ],
)
@pytest.mark.e2e
def test_refused(options, message, models, tmp_path, capsys):
    out = tmp_path / "out"
    if "--cosine_lengths" in options:
        (tmp_path / "text.txt").write_text("it 's good " * 200)
        options = [*options, "--text_file", str(tmp_path / "text.txt"), "--samples", "1"]
    error = fail(capsys, "bench", "embeddings", "--models", *models, *options, "--output_dir", out)
    assert message in error and not out.exists()


def test_embeddings_of_two_widths_have_no_cosine(models, tmp_path, capsys):
    wide = write_teacher(tmp_path / "wide", "it 's good bad", "RobertaModel")
    config = json.loads((wide / "config.json").read_text())
    width = config["hidden_size"]
    transformers.RobertaModel(
        transformers.RobertaConfig.from_dict({**config, "hidden_size": 2 * width})
    ).save_pretrained(wide)
    (tmp_path / "text.txt").write_text("it 's good " * 200)
    options = [
        "--text_file",
        tmp_path / "text.txt",
        "--samples",
        "1",
        "--cosine_lengths",
        "8",
        "--output_dir",
        tmp_path / "out",
    ]
    error = fail(capsys, "bench", "embeddings", "--models", models[0], wide, *options)
    assert f"models: expected embeddings of one width, {width}, got {2 * width}" in error
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_none_is_refused(models, tmp_path, capsys):
    error = fail(capsys, "bench", "embeddings", "--models", models[0], tmp_path, "--output_dir", tmp_path / "out")
    assert "models: expected config.json in" in error
    assert not (tmp_path / "out").exists()


def test_a_longer_student_is_one(models):
    """Else time and memory at another length would be those of another model."""
    student = linearize(transformers.AutoModel.from_pretrained(models[0]), 3, projection="linear")
    student.resize_sequence_length(2 * LENGTH, mode="interpolate")
    assert student.projections()[0].key_projection.shape == (3, 2 * LENGTH)
