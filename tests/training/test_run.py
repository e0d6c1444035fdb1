"""Around a training: the folder, records, how it ends, and its measurements."""

from __future__ import annotations

import json
import math
import re
from types import SimpleNamespace

import pytest

from linformer_cli.errors import MachineError
from linformer_kit import InputError
from linformer_kit.training import run as training_run
from linformer_kit.training.run import Run
from tests.training.conftest import small_plan, small_settings

FINGERPRINTS = {"text_fingerprint": "abc"}


def opened(folder, **fields: object) -> Run:
    made = Run("pretrain", small_settings(output_dir=str(folder), **fields))
    made.open({"text": "a few words"}, FINGERPRINTS)
    return made


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate: expected greater than or equal to 0, got -1.0"),
        ({"report_to": "nope"}, "report_to: expected "),
        ({"fully_shard": True}, "fully_shard: expected several processes, as torchrun starts them, got one"),
        ({"resume": True, "output_dir": None}, "resume: expected an output_dir to resume in, got none"),
    ],
)
def test_settings_are_rejected_before_anything_is_written(tmp_path, fields, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        Run("pretrain", small_settings(**{"output_dir": str(tmp_path / "out"), **fields}))
    assert not list(tmp_path.iterdir())


def test_processes_need_a_folder_to_share(monkeypatch):
    two = SimpleNamespace(num_processes=2, is_main_process=True)
    monkeypatch.setattr(training_run, "start_processes", lambda *_, **__: two)
    with pytest.raises(InputError, match=r"^output_dir: expected a folder for 2 processes to share, got none$"):
        Run("pretrain", small_settings())


def test_what_a_run_is_made_of_is_written_down_and_compared(tmp_path):
    opened(tmp_path / "out")
    written = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (written["command"], written["text"]) == ("pretrain", "a few words")
    assert written["text_fingerprint"] == "abc" and written["settings"]["learning_rate"] == 1e-2
    with pytest.raises(InputError, match="holds one; continue it with --resume"):
        opened(tmp_path / "out")
    again = Run("pretrain", small_settings(output_dir=str(tmp_path / "out"), resume=True))
    with pytest.raises(InputError, match=r"^resume: expected text_fingerprint as in .*run\.json, 'abc', got 'other'$"):
        again.open({"text": "other words"}, {"text_fingerprint": "other"})
    opened(tmp_path / "out", resume=True)
    assert len(json.loads((tmp_path / "out" / "run.json").read_text())["starts"]) == 2


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_of_runs_that_start_at_once_in_one_folder_one_goes_on(tmp_path, how):
    if how:
        opened(tmp_path / "out")
    first, second = (Run("pretrain", small_settings(output_dir=str(tmp_path / "out"), **how)) for _ in range(2))
    first.open({"text": "first"}, FINGERPRINTS)
    written = (tmp_path / "out" / "run.json").read_text()
    with pytest.raises(InputError, match=r"^output_dir: expected one run at a time, got another one in .*out$"):
        second.open({"text": "second"}, FINGERPRINTS)
    second._before = written.encode()  # as if both had looked for the file before one of them created it
    if not how:
        with pytest.raises(InputError, match=r"^output_dir: expected one run at a time, got another one in .*out$"):
            second.open({"text": "second"}, FINGERPRINTS)
    assert (tmp_path / "out" / "run.json").read_text() == written


def test_a_kill_before_the_first_record_was_written(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").touch()
    opened(tmp_path / "out", resume=True)
    assert len(json.loads((tmp_path / "out" / "run.json").read_text())["starts"]) == 1


def test_results_that_cannot_be_written_are_named(tmp_path):
    run = opened(tmp_path / "out")

    def fail(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(MachineError, match=r"out: the results could not be written: .*No space left"):
        run.write(fail)
    run.write(lambda folder: (folder / "a.txt").write_text("b"))
    assert (tmp_path / "out" / "a.txt").read_text() == "b"


FREE = {"max_skipped_updates": 3, "save_total_limit": 5, "logging_steps": 7, "report_to": "tensorboard", "dataloader_num_workers": 2, "ddp_timeout": 60}  # fmt: skip
FIXED = {"learning_rate": 1.0, "adam_beta1": 0.5, "adam_beta2": 0.5, "adam_epsilon": 1e-3, "weight_decay": 0.5, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine", "dtype": "float16", "projection_learning_rate_factor": 0.5, "torch_compile": True}  # fmt: skip


def test_settings_that_make_it_another_run_are_rejected(tmp_path):
    opened(tmp_path / "out")
    for name, value in FREE.items():
        Run("pretrain", small_settings(output_dir=str(tmp_path / "out"), resume=True, **{name: value}))
    for name, value in FIXED.items():
        changed = small_settings(output_dir=str(tmp_path / "out"), resume=True, **{name: value})
        with pytest.raises(InputError, match=f"^resume: expected {name} as in .*settings.yaml gives the same"):
            Run("pretrain", changed)
        Run("pretrain", changed, may_change=[name])
    with pytest.raises(InputError, match=r"^resume: expected global_batch_size as in .*run\.json, 4, got 2$"):
        Run("pretrain", small_settings(output_dir=str(tmp_path / "out"), resume=True, per_device_train_batch_size=2))


def test_a_last_evaluation_that_is_not_finite_diverged_too(masked, tmp_path):
    task = masked()
    task.metrics = lambda *_: {"loss": math.nan}
    training = opened(tmp_path / "out").train(task, small_plan(2))
    assert training.diverged == "training diverged: the validation loss is NaN or infinite; lower learning_rate 0.01"
