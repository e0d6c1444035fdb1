"""Settings as TrainingArguments: mixed precision where the processor has it, and wherever it is asked for."""

from __future__ import annotations

import dataclasses
import functools
import re

import pytest
import torch
from transformers import TrainingArguments

from linformer_kit import InputError
from linformer_kit.commands.parser import parse
from linformer_kit.training.arguments import training_arguments
from linformer_kit.training.pretraining import PRETRAINING

BF16_PROCESSOR = "_is_avx512_bf16_supported"


@pytest.fixture
def processor(monkeypatch):
    """A machine without an accelerator; call it with whether the processor has bf16 instructions."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *_: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return lambda bf16: monkeypatch.setattr(torch.cpu, BF16_PROCESSOR, lambda: bf16)


def build(tmp_path, **fields):
    settings = parse(["pretrain"])[1]
    return training_arguments(dataclasses.replace(settings, **fields), tmp_path, PRETRAINING)


@pytest.mark.parametrize("available", [True, False])
def test_auto_is_what_the_processor_has(processor, available, tmp_path):
    processor(available)
    arguments = build(tmp_path)
    assert arguments.bf16 is available
    assert arguments.device == torch.device("cpu")


@pytest.mark.parametrize(("asked", "result"), [("true", True), ("false", False)])
@pytest.mark.parametrize("available", [True, False])
def test_what_is_asked_for_wins(processor, available, asked, result, tmp_path):
    processor(available)
    assert build(tmp_path, bf16=asked).bf16 is result


def test_half_precision_is_not_both(processor, tmp_path):
    processor(True)
    assert build(tmp_path, trainer={"fp16": True}).bf16 is False


def test_one_process_trains_on_one_gpu(processor, tmp_path, monkeypatch):
    """Else transformers takes all of them by `nn.DataParallel`, with as many times the batch."""

    def three(arguments: TrainingArguments) -> torch.device:
        arguments._n_gpu = 3
        return torch.device("cpu")

    processor(False)
    found = functools.cached_property(three)
    found.__set_name__(TrainingArguments, "_setup_devices")
    monkeypatch.setattr(TrainingArguments, "_setup_devices", found)
    arguments = build(tmp_path, per_device_train_batch_size=5)
    assert (arguments.n_gpu, arguments.train_batch_size) == (1, 5)


@pytest.mark.parametrize(("trainer", "pinned"), [({}, True), ({"use_cpu": True}, False)])
def test_memory_is_pinned_for_a_gpu(trainer, pinned, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(TrainingArguments, "__post_init__", lambda _: None)
    monkeypatch.setattr(TrainingArguments, "n_gpu", 1)
    monkeypatch.setattr(TrainingArguments, "report_to", ())
    arguments = build(tmp_path, trainer=trainer, bf16="false", report_to=[])
    assert arguments.dataloader_pin_memory is pinned


@pytest.mark.parametrize("fields", [None, {1: 2}, ["adam_beta2"]])
def test_trainer_fields_have_names(fields, tmp_path):
    message = f"trainer: expected fields of TrainingArguments by name, got {fields!r}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        build(tmp_path, trainer=fields)


def test_trainer_fields_arrive(processor, tmp_path):
    processor(False)
    assert build(tmp_path, trainer={"adam_beta2": 0.9}).adam_beta2 == 0.9


@pytest.mark.parametrize("fields", [{"fsdp": "full_shard"}, {"fsdp": True}, {"fsdp_config": {"version": 2}}])
@pytest.mark.parametrize("where", ["without an accelerator", "use_cpu", "with one"])
@pytest.mark.e2e
def test_fsdp_says_why_not(fields, where, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *_: where != "without an accelerator")
    reason = "expected an accelerator: on CPU accelerate trains with DDP and shards nothing"
    if where == "with one":
        reason = "expected training.sharded, since the trainer writes pickles as checkpoints of a model in pieces"
    message = f"trainer.{next(iter(fields))}: {reason}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        build(tmp_path, trainer={**fields, "use_cpu": True} if where == "use_cpu" else fields)
