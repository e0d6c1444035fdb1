"""Outputs, gradients and losses of small models, recorded: what a change of structure must leave as it is.

`python -m tests.test_record` records the present numbers in `record.json`; do so only where a change is meant to change
them. Weights are drawn by the names of the parameters, so a renamed parameter needs an entry in `_RECORDED_NAMES`.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linformer_cli.cli import main
from linformer_kit import LinformerAttention, LinformerConfig, LinformerForMaskedLM, linearize
from linformer_kit.report.base import write_json
from tests.conftest import PRETRAIN_SIZES, SHARINGS, SIZES, write_corpus, write_teacher
from tests.families import FAMILIES, build, example

RECORD = Path(__file__).with_name("record.json")
LENGTH = 31
Numbers = dict[str, list[float]]

_RECORDED_NAMES: dict[str, str] = {}  # pattern in a parameter's present name: what it was when it was recorded
_QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_WINDOW = {"sliding_window": 6, "global_tokens": 2}
_PADDING = {
    "right": (range(23, LENGTH), range(17, LENGTH)),
    "left": (range(8), range(14)),
    "holes": ((3, 4, 19), (0, 7, 30)),
}

OWN: dict[str, dict[str, Any]] = {
    f"{projection} {sharing}": {"projection": projection, "sharing": sharing}
    for projection in ("linear", "mean_pool", "max_pool", "conv", "random", "dynamic")
    for sharing in SHARINGS
} | {
    "linear none window": {"sharing": "none", **_WINDOW},
    "linear layerwise window": {"sharing": "layerwise", **_WINDOW},
    "mean_pool window": {"projection": "mean_pool", **_WINDOW},
    "max_pool window": {"projection": "max_pool", "sharing": "none", **_WINDOW},
    "random window": {"projection": "random", **_WINDOW},
    "dynamic window": {"projection": "dynamic", "sharing": "key_value", **_WINDOW},
    "full": {"attention": "full"},
    "norm_first": {"norm_first": True},
    "convolution": {"local_convolution": 5, "sharing": "layerwise", "norm_first": True},
    "stretch mean_pool": {"shorter_input": "stretch", "projection": "mean_pool"},
    "bias after": {"bias_order": "after_projection"},
    "k by layer": {"projected_dim": [7, 3]},
    "k by head": {"projected_dim": [[7, 3, 5], [2, 7, 7]], "sharing": "none"},
    "token types": {"type_vocab_size": 2, "position_offset": 2},
}
OTHER_PADDING = [
    (kind, side)
    for kind in ("linear headwise", "mean_pool none", "conv none", "max_pool window", "dynamic window", "full")
    for side in ("left", "holes")
]
IN_PLACE = [
    (family, options)
    for family in ("albert", "bert", "distilbert", "eurobert", "modernbert", "roberta", "vit")
    for options in ("default", "learned")
]
_LEARNED = {"projection": "linear", "sliding_window": 0, "global_tokens": 0, "sharing": "key_value"}
_STEPS = {"max_steps": 100, "eval_steps": 50, "save_steps": 100, "logging_steps": 1, "warmup_steps": 10}


def own_model(kind: str, side: str = "right") -> Numbers:
    """A masked language model of this package, with padding."""
    model = _fill(LinformerForMaskedLM(LinformerConfig(**{**SIZES, **_QUIET, **OWN[kind]})))
    ids = torch.randint(5, SIZES["vocab_size"], (2, LENGTH), generator=_generator("ids"))
    mask = torch.ones_like(ids)
    for row, padded in enumerate(_PADDING[side]):
        mask[row, list(padded)] = 0
    labels = torch.where(mask.bool(), ids, -100)
    output = model(input_ids=ids, attention_mask=mask, labels=labels, output_hidden_states=True)
    output.loss.backward()
    real = mask.bool()
    return {
        "loss": [output.loss.item()],
        "logits": _summary(output.logits[real]),
        "hidden": _summary(output.hidden_states[-2][real]),
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


def drop_in(kind: str) -> Numbers:
    """The layer in the place of nn.MultiheadAttention, with keys of another length."""
    attention = _fill(LinformerAttention(33, 3, max_seq_len=37, projected_dim=7, **OWN[kind]))
    query, key = (
        torch.randn(2, n, 33, generator=_generator(str(n)), dtype=torch.float64, requires_grad=True) for n in (19, 29)
    )
    padded = torch.zeros(2, 29, dtype=torch.bool)
    padded[1, 23:] = True
    output, weights = attention(query, key, key, key_padding_mask=padded, need_weights=True)
    (output * _weights(output.shape)).sum().backward()
    return {
        "output": _summary(output),
        "weights": _summary(weights),
        "query": _summary(query.grad),
        "gradients": _gradients(attention),
    }


def exported() -> Numbers:
    """The program of torch.export."""
    model = _fill(LinformerForMaskedLM(LinformerConfig(**SIZES))).eval()
    ids = torch.randint(5, SIZES["vocab_size"], (2, LENGTH), generator=_generator("ids"))
    program = torch.export.export(model, (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return {"logits": _summary(program.module()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits)}


def trained(command: str) -> Numbers:
    """The losses of a hundred updates."""
    with tempfile.TemporaryDirectory() as name:
        folder, output = Path(name), Path(name) / "out"
        options: dict[str, Any] = _STEPS | {"per_device_train_batch_size": 3, "report_to": "none", "dtype": "float32"}
        (folder / "texts").mkdir()
        if command == "pretrain":
            arguments = [f"--train_file={write_corpus(folder / 'texts')}", f"--output_dir={output}"]
            options |= {f"model.{name}": value for name, value in PRETRAIN_SIZES.items()} | {"seed": 3}
        else:
            teacher = write_teacher(folder / "teacher", "number was good bad 0 1 2 3 4 5 6 7 8 9 .")
            words = [f"number {n} was {('good', 'bad')[n % 2]}" for n in range(60)]
            if command == "finetune":
                rows = "".join(f"{text},{n % 2}\n" for n, text in enumerate(words))
                (folder / "texts.csv").write_text("text,label\n" + rows)
                arguments = [f"--model={teacher}", f"--train_file={folder / 'texts.csv'}", f"--output_dir={output}"]
                options |= {"seed": 3, "head_start": "random"}
                del options["save_steps"]  # checkpoints are at evaluations
            else:
                (folder / "texts" / "words.txt").write_text("\n\n".join(words))
                arguments = [str(teacher), f"--output_dir={output}", f"--train_file={folder / 'texts'}"]
                options |= {"projected_dim": 5, "max_eval_samples": 5, "validation_fraction": 0.3, "seed": 3}
                options |= {"document": "line", "projection": "linear", "sliding_window": 3}
        main([command, *arguments, *(f"--{name}={value}" for name, value in options.items())])
        state = json.loads(next(output.rglob("checkpoint-100/trainer_state.json")).read_text())
        return {"losses": [entry["loss"] for entry in state["log_history"] if "loss" in entry]}


CASES: dict[str, Callable[[], Numbers]] = {
    **{kind: functools.partial(own_model, kind) for kind in OWN},
    **{f"{kind}, {side}": functools.partial(own_model, kind, side) for kind, side in OTHER_PADDING},
    **{f"{family} {options}": functools.partial(in_place, family, options) for family, options in IN_PLACE},
    **{f"drop-in {kind}": functools.partial(drop_in, kind) for kind in ("linear none", "mean_pool headwise")},
    "exported": exported,
}
TRAININGS = ("pretrain", "finetune", "distill")


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def _weights(shape: torch.Size) -> Tensor:
    return torch.randn(shape, generator=_generator("weights"), dtype=torch.float64)


def _fill(model: nn.Module) -> Any:
    """Weights, and matrices in buffers, in float64 that depend on the recorded names alone."""
    model = model.double().eval()
    fixed = [(name, buffer) for name, buffer in model.named_buffers() if buffer.dtype.is_floating_point]
    with torch.no_grad():
        for name, parameter in (
            *model.named_parameters(),
            *((name, buffer) for name, buffer in fixed if buffer.dim() > 1),
        ):
            for pattern, recorded in _RECORDED_NAMES.items():
                name = re.sub(pattern, recorded, name)
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
