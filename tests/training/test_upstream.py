"""The contract with private parts of transformers and accelerate: what `training/upstream.py` replaces or counts on."""

from __future__ import annotations

import ast
import hashlib
import inspect
from pathlib import Path
from types import SimpleNamespace

import accelerate
import pytest
import transformers
from accelerate import data_loader
from transformers import Trainer
from transformers.trainer_callback import CallbackHandler

from linformer_kit.training import upstream

# SHA-256 of the source, the first twelve digits, as of transformers 5.23.0 and accelerate 1.15.0.
KNOWN = {
    "Trainer._clip_grad_norm": "ebfa9dc91d30",
    "Trainer._determine_best_metric": "7aa77355a0c3",
    "Trainer._evaluate": "64dfb995ce20",
    "Trainer._finalize_training": "6d6d83d6a271",
    "Trainer._get_eval_sampler": "f0213c4ba087",
    "Trainer._get_grad_norm": "913ba6f52f07",
    "Trainer._get_train_sampler": "1580d7493244",
    "Trainer._init_training_state": "8fbd17ebb7d3",
    "Trainer._inner_training_loop": "20ec4276e99f",
    "Trainer._load_best_model": "0e183d55a9db",
    "Trainer._load_callback_state": "2d0eae17b14b",
    "Trainer._load_from_checkpoint": "a2804e8d93a2",
    "Trainer._load_optimizer_and_scheduler": "741032f57d6f",
    "Trainer._load_rng_state": "d5ebdfc0a088",
    "Trainer._load_scaler": "c0695f791164",
    "Trainer._maybe_log_save_evaluate": "af101534f0f7",
    "Trainer._prepare_for_training": "f55950593d7e",
    "Trainer._prepare_inputs": "8f8c4e430d2f",
    "Trainer._run_epoch": "31aff00f34c3",
    "Trainer._save": "b136889e8792",
    "Trainer._save_checkpoint": "a9111e30faa9",
    "Trainer.evaluation_loop": "a0fe4d6536f8",
    "Trainer.get_batch_samples": "0b3727386f73",
    "Trainer.save_model": "705727ee10c8",
    "Trainer.set_initial_training_values": "81697f5f3100",
    "Trainer.train": "9a3c2bcd066d",
    "Trainer.training_step": "e9760c8ee103",
    "CallbackHandler.on_train_begin": "9fa2467c0cd3",
    "CallbackHandler.on_step_begin": "f485a3574dc6",
    "skip_first_batches": "c3e05a215cb6",
    "BatchSamplerShard": "bc556bbcf71e",
    "DataLoaderShard": "f6025f2608b9",
}
PARTS = {
    **{f"Trainer.{name}": getattr(Trainer, name, None) for name in upstream.PRIVATE},
    **{f"CallbackHandler.{name}": getattr(CallbackHandler, name, None) for name in ("on_train_begin", "on_step_begin")},
    **{
        name: getattr(data_loader, name, None)
        for name in ("skip_first_batches", "BatchSamplerShard", "DataLoaderShard")
    },
}


def source(part: object) -> str:
    return hashlib.sha256(inspect.getsource(part).encode()).hexdigest()[:12]


@pytest.mark.parametrize("name", PARTS)
def test_upstream_is_what_it_was(name):
    assert PARTS[name] is not None, f"{name} is gone: see what training/upstream.py did with it"
    assert source(PARTS[name]) == KNOWN[name], (
        f"{name} has changed (transformers {transformers.__version__}, accelerate {accelerate.__version__}): read it, see "
        f"whether training/upstream.py still holds, run pytest -m slow tests/faults, and record {source(PARTS[name])}"
    )


def test_every_private_method_that_is_touched_is_in_the_contract():
    """Replaced, or called by the name of one, in any of our trainers."""
    theirs = {name for name in vars(Trainer) if name.startswith("_") and callable(getattr(Trainer, name))}
    touched = set()
    for file in Path(upstream.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            touched |= {node.attr} if isinstance(node, ast.Attribute) else set()
            touched |= {node.name} if isinstance(node, ast.FunctionDef) else set()
    dunders = {name for name in theirs if name.startswith("__")}
    assert touched & theirs - dunders <= set(upstream.PRIVATE)


def test_the_loss_that_processes_send_is_on_the_cpu():
    """The one that writes may not see their devices."""
    names = ("_total_loss_scalar", "_globalstep_last_logged", "_evaluation_due", "_epoch", "_batches")
    on_device = SimpleNamespace(cpu=lambda: "on the CPU")
    trainer = SimpleNamespace(_tr_loss=on_device, **dict.fromkeys(names, 0))
    assert upstream.ExactTrainer._own_state(trainer)["loss"] == "on the CPU"
