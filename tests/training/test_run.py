"""Around a training: the folder, records, how it ends, and its measurements."""

from __future__ import annotations

import json
import math
import os
import re
import socket

import pytest

from linformer_kit import InputError
from linformer_kit.training.run import Run
from tests.training.conftest import small_plan, small_settings

FINGERPRINTS = {"text_fingerprint": "abc"}


def started(folder, **fields: object) -> Run:
    """A run, with the lock of its folder if that exists."""
    return Run("pretrain", small_settings(output_dir=str(folder), **fields))


def opened(folder, **fields: object) -> Run:
    """A run with its folder."""
    made = started(folder, **fields)
    made.open({"text": "a few words"}, FINGERPRINTS)
    return made


def test_what_a_run_is_made_of_is_written_down_and_compared(tmp_path):
    with opened(tmp_path / "out"):
        pass
    written = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (written["command"], written["text"]) == ("pretrain", "a few words")
    assert written["text_fingerprint"] == "abc" and written["settings"]["learning_rate"] == 1e-2
    with pytest.raises(InputError, match="which holds a run; --resume continues it"):
        started(tmp_path / "out")
    message = f"resume: expected the content that the run in {tmp_path / 'out'} began with, got other text"
    with (
        started(tmp_path / "out", resume=True) as again,
        pytest.raises(InputError, match=f"^{re.escape(message)}$"),
    ):
        again.open({"text": "other words"}, {"text_fingerprint": "other"})
    with opened(tmp_path / "out", resume=True):
        pass
    assert len(json.loads((tmp_path / "out" / "run.json").read_text())["starts"]) == 2


def test_a_folder_has_one_run_at_a_time(tmp_path):
    """Until it ends, however it ends; the second start writes nothing."""
    folder = tmp_path / "out"
    with opened(folder):
        written = {path: path.read_bytes() for path in folder.iterdir()}
        owner = f"process {os.getpid()} on {socket.gethostname()}, which holds {folder / '.lock'}"
        with pytest.raises(InputError, match=f"^output_dir: expected one run at a time, got another one, {owner}$"):
            started(folder, resume=True)
        assert {path: path.read_bytes() for path in folder.iterdir()} == written
    assert not (folder / ".lock").exists()
    with opened(folder, resume=True), pytest.raises(InputError, match="expected one run at a time"):
        started(folder, resume=True)


def test_of_runs_that_start_at_once_in_a_new_folder_one_goes_on(tmp_path):
    """Both have found no folder; also if the first has ended before the second one opens it."""
    first, second, third = (started(tmp_path / "out", resume=True) for _ in range(3))
    with first:
        first.open({"text": "first"}, FINGERPRINTS)
        with second, pytest.raises(InputError, match=r"^output_dir: expected one run at a time, got another one"):
            second.open({"text": "second"}, FINGERPRINTS)
    with third, pytest.raises(InputError, match=r"^output_dir: expected a new or empty folder, got .* holds a run"):
        third.open({"text": "third"}, FINGERPRINTS)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["text"] == "first"


def test_a_start_that_is_refused_releases_the_folder(tmp_path):
    with opened(tmp_path / "out"):
        pass
    for _ in range(2):
        with pytest.raises(InputError, match=r"^resume: expected learning_rate"):
            started(tmp_path / "out", resume=True, learning_rate=1.0)
    assert not (tmp_path / "out" / ".lock").exists()


FREE = {"save_total_limit": 5, "logging_steps": 7, "report_to": "tensorboard", "dataloader_num_workers": 2, "ddp_timeout": 60}  # fmt: skip
FIXED = {"learning_rate": 1.0, "adam_beta1": 0.5, "adam_beta2": 0.5, "adam_epsilon": 1e-3, "weight_decay": 0.5, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine", "dtype": "float16", "projection_learning_rate_factor": 0.5, "torch_compile": True}  # fmt: skip


def test_settings_that_make_it_another_run_are_rejected(tmp_path):
    with opened(tmp_path / "out"):
        pass
    for name, value in FREE.items():
        started(tmp_path / "out", resume=True, **{name: value}).__exit__()
    for name, value in FIXED.items():
        changed = small_settings(output_dir=str(tmp_path / "out"), resume=True, **{name: value})
        with pytest.raises(InputError, match=f"^resume: expected {name} as in .*settings.yaml gives the same"):
            Run("pretrain", changed)
        Run("pretrain", changed, may_change=[name]).__exit__()
    with pytest.raises(
        InputError,
        match=r"^resume: expected per_device_train_batch_size 4 for all processes together, as in .*run\.json, got 2 × 1$",
    ):
        started(tmp_path / "out", resume=True, per_device_train_batch_size=2)


def test_a_last_evaluation_that_is_not_finite_diverged_too(masked, tmp_path):
    task = masked()
    task.metrics = lambda *_: {"loss": math.nan}
    with opened(tmp_path / "out") as run:
        run.train(task, small_plan(2))
    assert run.diverged == "training diverged: the validation loss is NaN or infinite; lower learning_rate 0.01"
