"""Outputs, gradients and losses of small models, recorded: what a change of structure must leave as it is.

`python -m tests.test_record` records the present numbers in `record.json`; do so only where a change is meant to change
them. Weights are drawn by the names of the parameters.
"""

from __future__ import annotations

import functools
import json
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linformer_kit import LinformerConfig, LinformerForMaskedLM, linearize
from linformer_kit.report.base import write_json
from tests.conftest import SHARINGS, SIZES
from tests.families import FAMILIES, build, example
from tests.test_library import trainings

RECORD = Path(__file__).with_name("record.json")
LENGTH = 31
Numbers = dict[str, list[float]]

_QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_WINDOW = {"sliding_window": 6, "global_tokens": 2}

OWN: dict[str, dict[str, Any]] = {
    **{f"linear {sharing}": {"sharing": sharing} for sharing in SHARINGS},
    "mean_pool": {"projection": "mean_pool"},
    "max_pool": {"projection": "max_pool"},
    "random": {"projection": "random"},
    "conv by head": {"projection": "conv", "sharing": "none"},
    "conv": {"projection": "conv", "sharing": "key_value", "norm_first": True},
    "dynamic": {"projection": "dynamic", "sharing": "layerwise"},
    "linear window": {"sharing": "none", **_WINDOW},
    "mean_pool window": {"projection": "mean_pool", **_WINDOW},
    "dynamic window": {"projection": "dynamic", "sharing": "key_value", **_WINDOW},
    "full": {"attention": "full", "type_vocab_size": 2, "position_offset": 2},
    "convolution": {"local_convolution": 5, "sharing": "layerwise", "norm_first": True},
    "stretch": {"shorter_input": "stretch", "projection": "mean_pool"},
    "bias after": {"bias_order": "after_projection", "projected_dim": [7, 3]},
    "k by head": {"projected_dim": [[7, 3, 5], [2, 7, 7]], "sharing": "none"},
}
IN_PLACE = [
    *((family, "default") for family in ("albert", "bert", "distilbert", "eurobert", "modernbert")),
    *((family, "learned") for family in ("roberta", "vit")),
]
_LEARNED = {"projection": "linear", "sliding_window": 0, "global_tokens": 0, "sharing": "key_value"}


def own_model(kind: str) -> Numbers:
    """A masked language model of this package, for texts with padding on the right, on the left, and in holes."""
    model = _fill(LinformerForMaskedLM(LinformerConfig(**{**SIZES, **_QUIET, **OWN[kind]})))
    ids = torch.randint(5, SIZES["vocab_size"], (3, LENGTH), generator=_generator("ids"))
    mask = torch.ones_like(ids)
    mask[0, 23:] = mask[1, :14] = mask[2, [3, 4, 19]] = 0
    output = model(input_ids=ids, attention_mask=mask, labels=torch.where(mask.bool(), ids, -100))
    output.loss.backward()
    return {
        "loss": [output.loss.item()],
        "logits": _summary(output.logits[mask.bool()]),
        "gradients": _gradients(model),
    }


def in_place(family: str, options: str) -> Numbers:
    """An encoder of transformers, linearised in place."""
    linear = _fill(linearize(build(FAMILIES[family]), 7, **(_LEARNED if options == "learned" else {})))
    torch.manual_seed(0)
    inputs = example(linear, 43, padded=True)
    hidden = linear(**inputs)[0]
    mask = inputs.get("attention_mask", torch.ones(hidden.shape[:2])).bool()
    (hidden[mask] * _weights(hidden[mask].shape)).sum().backward()
    return {"hidden": _summary(hidden[mask]), "gradients": _gradients(linear)}


def trained(command: str) -> Numbers:
    """The losses of a hundred updates."""
    with tempfile.TemporaryDirectory() as name:
        steps = {"max_steps": 100, "eval_steps": 50, "save_steps": 100, "warmup_steps": 10, "seed": 3}
        (train, settings), output = trainings(Path(name), **steps)[command], Path(name) / command
        train(settings)
        state = json.loads(next(output.rglob("checkpoint-100/trainer_state.json")).read_text())
        return {"losses": [entry["loss"] for entry in state["log_history"] if "loss" in entry]}


CASES: dict[str, Callable[[], Numbers]] = {
    **{kind: functools.partial(own_model, kind) for kind in OWN},
    **{f"{family} {options}": functools.partial(in_place, family, options) for family, options in IN_PLACE},
}
TRAININGS = ("pretrain", "finetune", "distill")


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def _weights(shape: torch.Size) -> Tensor:
    return torch.randn(shape, generator=_generator("weights"), dtype=torch.float64)


def _fill(model: nn.Module) -> Any:
    """Weights, and matrices in buffers, in float64 that depend on their names alone."""
    model = model.double().eval()
    fixed = [(name, buffer) for name, buffer in model.named_buffers() if buffer.dtype.is_floating_point]
    with torch.no_grad():
        for name, parameter in (
            *model.named_parameters(),
            *((name, buffer) for name, buffer in fixed if buffer.dim() > 1),
        ):
            drawn = torch.randn(parameter.shape, generator=_generator(name), dtype=torch.float64)
            parameter.copy_(drawn * 0.3)
    return model


def _summary(tensor: Tensor) -> list[float]:
    """Mean square, and the sum with random weights."""
    return [tensor.square().mean().item(), (tensor * _weights(tensor.shape)).sum().item()]


def _gradients(model: nn.Module) -> list[float]:
    """The norms of all gradients, in ascending order."""
    return sorted(part.grad.norm().item() for part in model.parameters() if part.grad is not None)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads(RECORD.read_text())


@pytest.mark.unchecked
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients(record, case):
    now, recorded = CASES[case](), record["models"][case]
    assert now.keys() == recorded.keys()
    for name, values in now.items():
        assert values == pytest.approx(recorded[name], rel=1e-12, abs=1e-12), name


@pytest.mark.e2e
@pytest.mark.parametrize("command", TRAININGS)
def test_losses_of_a_hundred_updates(record, command):
    """Float32: other processors round differently, which a training magnifies."""
    is_same = record["processor"] == torch.backends.cpu.get_cpu_capability()
    expected = pytest.approx(record["losses"][command], rel=1e-6 if is_same else 1e-2)
    assert trained(command)["losses"] == expected


def _write() -> None:
    torch.set_num_threads(1)
    content = {
        "processor": torch.backends.cpu.get_cpu_capability(),
        "models": {name: make() for name, make in CASES.items()},
        "losses": {command: trained(command)["losses"] for command in TRAININGS},
    }
    write_json(content, RECORD)


if __name__ == "__main__":
    _write()
