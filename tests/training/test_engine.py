"""Forward, backward and step: exact sums over labels, precision, non-finite values, and AdamW's groups."""

from __future__ import annotations

import math
import os
import socket

import pytest
import torch
import torch.distributed as dist
from accelerate import PartialState
from transformers import Trainer, TrainingArguments

from linformer_kit import LinformerConfig, LinformerForMaskedLM
from linformer_kit.training.engine import Engine, adamw
from linformer_kit.training.tasks.base import Task
from tests.conftest import SIZES
from tests.families import FAMILIES
from tests.families import build as build_family
from tests.processes import run_processes
from tests.training.conftest import small_settings

BATCH = 6


class Words(Task):
    """The masked language model, on batches that a test makes itself; `means` has losses that are no sums."""

    def __init__(self, model: LinformerForMaskedLM, *, means: bool = False) -> None:
        super().__init__(model, None, train=[], validation=[], collate=dict)
        self.means = means

    def labels(self, batch):
        return None if self.means else (batch["labels"] != -100).sum()

    def forward(self, batch, labels):
        return self.model(**batch, num_items_in_batch=labels).loss


def task(**fields: object) -> Words:
    torch.manual_seed(1)
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return Words(LinformerForMaskedLM(LinformerConfig(**{**SIZES, **quiet})), **fields)


def batches(parts: int) -> list[dict[str, torch.Tensor]]:
    """One batch, in so many parts with different numbers of labels."""
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(5, SIZES["vocab_size"], (BATCH, 31), generator=draw)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=draw) > torch.linspace(0.1, 0.9, BATCH)[:, None], -100)
    pairs = zip(ids.chunk(parts), labels.chunk(parts), strict=True)
    return [{"input_ids": some, "labels": wanted} for some, wanted in pairs]


def update(engine: Engine, parts: list) -> list[torch.Tensor]:
    total = engine.total_labels(parts)
    return [engine.backward(batch, total, number, len(parts)) for number, batch in enumerate(parts)]


def gradients(engine: Engine) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in engine._task.model.parameters()]


def test_parts_of_an_update_have_the_gradient_of_the_whole():
    """Each masked token counts alike, in whichever part it stands."""
    whole, parted = Engine(task(), small_settings()), Engine(task(), small_settings())
    (loss,) = update(whole, batches(1))
    losses = update(parted, batches(3))
    assert sum(losses).item() == pytest.approx(loss.item(), rel=1e-6) and len(losses) == 3
    counts = [int((batch["labels"] != -100).sum()) for batch in batches(3)]
    assert len(set(counts)) == 3, "else a mean of means would pass"
    assert int(parted.total_labels(batches(3))) == sum(counts)
    for ours, theirs in zip(gradients(parted), gradients(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_losses_that_are_means_count_alike():
    engine = Engine(task(means=True), small_settings())
    parts = batches(3)
    assert engine.total_labels(parts) is None
    expected = [engine._task(batch, None).item() / 3 for batch in parts]
    assert [loss.item() for loss in update(engine, parts)] == pytest.approx(expected, rel=1e-6)


def test_the_gradient_norm_is_clipped_and_told():
    engine = Engine(task(), small_settings())
    update(engine, batches(1))
    before = gradients(engine)
    norm = math.sqrt(sum(float(each.square().sum()) for each in before))
    assert engine.clip(0.0) == pytest.approx(norm, rel=1e-5)
    assert all(map(torch.equal, gradients(engine), before)), "0: no clipping"
    assert engine.clip(2 * norm) == pytest.approx(norm, rel=1e-5)
    assert all(map(torch.equal, gradients(engine), before))
    assert engine.clip(norm / 2) == pytest.approx(norm, rel=1e-5)
    for ours, theirs in zip(gradients(engine), before, strict=True):
        torch.testing.assert_close(ours, theirs / 2, rtol=1e-4, atol=1e-8)


# Precision -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "dtype", "said"),
    [
        ({"bf16": "false"}, torch.float32, "float32"),
        ({"bf16": "true"}, torch.bfloat16, "bfloat16 mixed precision"),
        ({"bf16": "auto", "fp16": True}, torch.float16, "float16 mixed precision"),
    ],
)
def test_passes_are_in_the_precision_that_was_asked_for(fields, dtype, said):
    """Parameters and gradients stay in float32."""
    engine, seen = Engine(task(), small_settings(**fields)), []
    engine._task.model.lm_head.dense.register_forward_hook(lambda _, given, output: seen.append(output.dtype))
    update(engine, batches(1))
    assert seen == [dtype] and engine.precision == said and engine.bf16 == (dtype is torch.bfloat16)
    assert {parameter.grad.dtype for parameter in engine._task.model.parameters()} == {torch.float32}


def test_float16_skips_what_overflows_and_lowers_its_scale():
    """Which is no error; the scale of a checkpoint goes on."""
    engine = Engine(task(), small_settings(fp16=True, max_grad_norm=1.0))
    start = engine.scaler_state()
    assert start == {"scale": 65536.0, "_growth_tracker": 0}
    before = [parameter.detach().clone() for parameter in engine._task.model.parameters()]
    losses = update(engine, batches(1))
    engine._task.model.lm_head.dense.weight.grad.fill_(math.inf)
    norm = engine.clip(1.0)
    assert not math.isfinite(norm) and engine.checked_loss(losses, norm)[1] == ""
    engine.step(1.0)
    assert all(map(torch.equal, engine._task.model.parameters(), before))
    state = engine.scaler_state()
    assert state["scale"] == start["scale"] / 2
    other = Engine(task(), small_settings(fp16=True))
    other.load_scaler(state)
    assert other.scaler_state() == state
    other.load_scaler({})
    assert other.scaler_state() == state and Engine(task(), small_settings()).scaler_state() == {}


def test_what_is_asked_of_the_model(monkeypatch):
    found = task()
    seen = []
    monkeypatch.setattr(found.model, "compile", lambda: seen.append("compile"))
    monkeypatch.setattr(found.model, "activation_checkpointing_enable", lambda named: seen.append(named))
    Engine(found, small_settings())
    assert not seen
    Engine(found, small_settings(torch_compile=True, activation_checkpointing=True))
    assert seen == [{"use_reentrant": False}, "compile"]


# AdamW's groups: those of transformers' Trainer, and E and F by themselves -------------------------------------------

OURS = {
    "masked": lambda config: LinformerForMaskedLM(config()),
    "local": lambda config: LinformerForMaskedLM(config(local_convolution=5)),
}


def groups_by_name(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    """Learning rate and decay of each parameter."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


@pytest.mark.parametrize("kind", ["masked", "local", "modernbert"])
def test_groups_are_those_of_transformers(kind, config, tmp_path):
    """Rate and decay of each parameter; what is frozen has none."""
    model = OURS[kind](config) if kind in OURS else build_family(FAMILIES[kind])
    next(model.parameters()).requires_grad_(False)
    arguments = TrainingArguments(
        str(tmp_path), learning_rate=3e-3, weight_decay=0.07, use_cpu=True, report_to="none", adam_beta2=0.9
    )
    theirs = Trainer(model, arguments).create_optimizer()
    ours = adamw(model, small_settings(learning_rate=3e-3, weight_decay=0.07, adam_beta2=0.9))
    found = groups_by_name(model, ours)
    assert found == groups_by_name(model, theirs)
    assert set(found.values()) == {(3e-3, 0.07), (3e-3, 0.0)}
    for name in ("betas", "eps", "amsgrad", "maximize"):
        assert ours.defaults[name] == theirs.defaults[name]


@pytest.mark.parametrize(("factor", "expected"), [(1.0, []), (0.5, [(0.5e-2, 0.01)])])
def test_e_and_f_are_apart_only_with_a_rate_of_their_own(config, factor, expected):
    model = LinformerForMaskedLM(config())
    settings = small_settings(projection_learning_rate_factor=factor)
    groups = adamw(model, settings).param_groups
    found = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(found) == sorted(id(parameter) for parameter in model.parameters())
    assert [(group["lr"], group["weight_decay"]) for group in groups[2:]] == expected
    matrices = {id(p) for name, p in model.named_parameters() if "projection." in name}
    if expected:
        assert {id(parameter) for parameter in groups[2]["params"]} == matrices and len(matrices) == 4
    assert [(group["lr"], group["weight_decay"]) for group in groups[:2]] == [(1e-2, 0.01), (1e-2, 0.0)]


# Several processes ---------------------------------------------------------------------------------------------------


def join(rank: int, processes: int, port: int) -> None:
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    named |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in named.items()}
    PartialState(cpu=True)


def check_process(rank: int, processes: int, port: int) -> None:
    """The last process alone has what is not finite; all hear of it."""
    torch.set_num_threads(1)
    join(rank, processes, port)
    engine = Engine(task(), small_settings(use_cpu=True))
    losses = [torch.tensor(0.5), torch.tensor(0.25)]
    assert engine.checked_loss(losses, 1.0) == (0.75 * processes, "")
    assert engine.largest(3 * rank) == 3 * (processes - 1)
    wrong = engine.checked_loss(losses, math.nan if rank == processes - 1 else 1.0)[1]
    assert wrong == "a gradient norm of nan"
    del engine  # DistributedDataParallel may wait for ever if its process group is destroyed first
    dist.destroy_process_group()


@pytest.mark.e2e
def test_processes_tell_each_other(processes=3):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_processes(processes, check_process, processes, port)
