"""One update: exact sums over labels, precision, clipping, non-finite values, several processes; AdamW's groups."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate import PartialState
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments

from linformer_cli.errors import DivergedError, Stopped
from linformer_kit import LinformerConfig, LinformerForMaskedLM
from linformer_kit.data.tokenizer import train_tokenizer
from linformer_kit.training.optimizer import adamw
from linformer_kit.training.run import Run
from linformer_kit.training.task import Task
from tests.conftest import SIZES
from tests.families import FAMILIES
from tests.families import build as build_family
from tests.processes import run_processes
from tests.training.conftest import begun, same_parameters, small_plan, small_settings

BATCH = 6


class Words(Task):
    """The masked language model on one batch, without dropout or validation; `means` has losses that are no sums."""

    def __init__(self, tokenizer, *, means: bool = False) -> None:
        torch.manual_seed(1)
        quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = LinformerForMaskedLM(LinformerConfig(**{**SIZES, **quiet}))
        draw = torch.Generator().manual_seed(3)
        ids = torch.randint(5, SIZES["vocab_size"], (BATCH, 31), generator=draw)
        hidden = torch.rand(ids.shape, generator=draw) <= torch.linspace(0.1, 0.9, BATCH)[:, None]
        self.labels_of_rows = hidden.sum(dim=1)
        rows = [
            {"input_ids": row, "labels": row.masked_fill(~mask, -100)} for row, mask in zip(ids, hidden, strict=True)
        ]
        super().__init__(model, tokenizer, train=rows, validation=[], collate=default_collate)
        self.means, self.losses = means, []

    def order(self, epoch, update_size):
        return list(range(BATCH))

    def labels(self, batch):
        return None if self.means else (batch["labels"] != -100).sum()

    def forward(self, batch, labels):
        loss = self.model(**batch, num_items_in_batch=labels).loss
        self.losses.append(loss.item())
        return loss

    def metrics(self, *_):
        return {"loss": 1.0}


@pytest.fixture
def one_update(words, run):
    """A factory of trainings of one update, made in so many passes; `gradients` are those of the step."""

    def make(passes: int = 1, *, task: Words | None = None, **fields: object) -> Run:
        task, gradients = task or Words(words), []
        step = torch.optim.AdamW.step

        def watched(optimizer, *arguments, **named):
            gradients.extend(parameter.grad.clone() for parameter in task.model.parameters())
            return step(optimizer, *arguments, **named)

        sizes = {"per_device_train_batch_size": BATCH // passes, "gradient_accumulation_steps": passes}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim.AdamW, "step", watched)
            training = run(task=task, updates=1, **sizes, **fields)
        training.gradients = gradients
        return training

    return make


def test_parts_of_an_update_have_the_gradient_of_the_whole(one_update):
    """Each masked token counts alike, in whichever part it stands."""
    whole, parted = one_update(1), one_update(3)
    assert len(set(parted.task.labels_of_rows.view(3, 2).sum(dim=1).tolist())) == 3, "else a mean of means would pass"
    assert parted.state.logged("loss")[1] == pytest.approx(whole.state.logged("loss")[1], rel=1e-6)
    for ours, theirs in zip(parted.gradients, whole.gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_losses_that_are_means_count_alike(one_update, words):
    training = one_update(3, task=Words(words, means=True))
    assert training.state.logged("loss")[1] == pytest.approx(sum(training.task.losses) / 3, rel=1e-6)


def test_the_gradient_norm_is_clipped_and_told(one_update):
    whole = one_update(max_grad_norm=0)
    norm = math.sqrt(sum(float(each.square().sum()) for each in whole.gradients))
    for longest, factor in ((2 * norm, 1.0), (norm / 2, 0.5)):
        clipped = one_update(max_grad_norm=longest)
        assert clipped.state.logged("grad_norm")[1] == pytest.approx(norm, rel=1e-5)
        for ours, theirs in zip(clipped.gradients, whole.gradients, strict=True):
            torch.testing.assert_close(ours, theirs * factor, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_passes_are_in_the_precision_that_was_asked_for(one_update, words, dtype):
    """Parameters and gradients stay in float32."""
    task, seen = Words(words), []
    task.model.lm_head.dense.register_forward_hook(lambda _, given, output: seen.append(output.dtype))
    training = one_update(task=task, dtype=str(dtype).removeprefix("torch."))
    assert seen == [dtype] == [training.dtype]
    assert {gradient.dtype for gradient in training.gradients} == {torch.float32}


def test_float16_skips_what_overflows_and_lowers_its_scale(build, words, tmp_path):
    """Which is no error; the scale of a checkpoint goes on."""
    task = Words(words)
    task.model.lm_head.dense.weight.register_hook(lambda gradient: gradient * math.inf)
    training = build(task=task, updates=1, dtype="float16")
    training.loop()
    assert same_parameters(task.model, Words(words).model)
    assert training.state.scaler == {"scale": 32768.0, "_growth_tracker": 0}
    resumed = build(task=task, updates=2, dtype="float16", checkpoint=tmp_path / "run" / "checkpoint-1")
    resumed.loop()
    assert resumed.state.scaler == {"scale": 16384.0, "_growth_tracker": 0}


# Several processes ---------------------------------------------------------------------------------------------------


def check_process(rank: int, processes: int, folder: Path) -> None:
    """The last process alone has a loss that is not finite, and then a signal; all hear of it."""
    torch.set_num_threads(1)
    PartialState(cpu=True)
    tokenizer = train_tokenizer(["def one(): return two\n"] * 3, vocab_size=269, max_length=23)
    is_last = rank == processes - 1

    def training(name: str) -> Run:
        fields = {"device": "cpu", "per_device_train_batch_size": BATCH // processes, "output_dir": str(folder / name)}
        return begun(Words(tokenizer), folder / name, small_plan(3), **fields)

    wrong, stopped = training("wrong"), training("stopped")
    forward = wrong.task.forward
    wrong.task.forward = lambda *inputs: forward(*inputs) * (math.nan if is_last else 1.0)
    # By the gradients that the processes have averaged, the first one has it too, and says so.
    with pytest.raises(DivergedError, match=r"^update 1 .* got a gradient norm of nan; the update was not made"):
        wrong.loop()
    stopped.task.begin = lambda update: signal.raise_signal(signal.SIGTERM) if is_last and update == 1 else None
    with pytest.raises(Stopped, match=r"^stopped after update 2; --resume goes on from .*checkpoint-2$"):
        stopped.loop()
    del wrong, stopped  # DistributedDataParallel may wait for ever if its process group is destroyed first
    dist.destroy_process_group()


@pytest.mark.e2e
def test_processes_tell_each_other(tmp_path, processes=3):
    run_processes(processes, check_process, processes, tmp_path)


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
