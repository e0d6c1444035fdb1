"""The contract with private parts of transformers and accelerate: what `training/upstream.py` replaces or counts on."""

from __future__ import annotations

import hashlib
import inspect

import accelerate
import pytest
import transformers
from accelerate import data_loader
from transformers import Trainer
from transformers.trainer_callback import CallbackHandler

from linformer_kit.training import upstream
from linformer_kit.training.upstream import ExactTrainer

# SHA-256 of the source, the first twelve digits, as of transformers 5.23.0 and accelerate 1.15.0.
KNOWN = {
    "Trainer._evaluate": "64dfb995ce20",
    "Trainer._finalize_training": "6d6d83d6a271",
    "Trainer._get_grad_norm": "913ba6f52f07",
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
    "Trainer._run_epoch": "31aff00f34c3",
    "Trainer._save": "b136889e8792",
    "Trainer._save_checkpoint": "a9111e30faa9",
    "Trainer.save_model": "705727ee10c8",
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


def test_every_private_method_that_is_replaced_is_in_the_contract():
    replaced = {name for name in vars(ExactTrainer) if hasattr(Trainer, name) and not name.startswith("__")}
    assert replaced - {"evaluate"} <= set(upstream.PRIVATE)
