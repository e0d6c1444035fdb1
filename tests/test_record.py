"""Outputs, gradients and losses of small models, recorded: what a change of structure must leave as it is.

`python -m tests.test_record` records the present numbers in `record.json`; do so only where a change is meant to change
them. Weights are drawn by the names of the parameters.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linformer_cli.settings import DistillSettings, FinetuneSettings, ModelSettings, PretrainSettings
from linformer_kit import LinformerConfig, LinformerForMaskedLM, linearize
from linformer_kit.report.base import write_json
from linformer_kit.training import distill, finetune, pretrain, process
from tests.conftest import PRETRAIN_SIZES, SIZES, write_corpus, write_model, write_teacher
from tests.families import FAMILIES, build, example
from tests.process_state import changed, process_state

RECORD = Path(__file__).with_name("record.json")
_WINDOW = {"sliding_window": 6, "global_tokens": 2}
OWN: dict[str, dict[str, Any]] = {
    "linear layerwise": {"sharing": "layerwise"},
    "linear window": {"sharing": "none", **_WINDOW},
    "mean_pool window": {"projection": "mean_pool", **_WINDOW},
    "conv": {"projection": "conv", "sharing": "key_value", "norm_first": True},
    "dynamic window": {"projection": "dynamic", "sharing": "key_value", **_WINDOW},
    "full": {"attention": "full", "type_vocab_size": 2, "position_offset": 2},
    "convolution": {"local_convolution": 5, "sharing": "layerwise", "norm_first": True},
    "stretch": {"shorter_input": "stretch", "projection": "mean_pool"},
    "bias after": {"bias_order": "after_projection", "projected_dim": [7, 3]},
    "k by head": {"projected_dim": [[7, 3, 5], [2, 7, 7]], "sharing": "none"},
}
_LEARNED = {"projection": "linear", "sliding_window": 0, "global_tokens": 0, "sharing": "key_value"}
IN_PLACE = {f"{name} default": {} for name in ("albert", "bert", "distilbert", "eurobert", "modernbert")}
IN_PLACE |= {f"{name} learned": _LEARNED for name in ("roberta", "vit")}
TRAININGS = ("pretrain", "finetune", "distill")


def normal(name: str, *shape: int) -> Tensor:
    """Random numbers in float64 that depend on a name alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def filled(model: nn.Module) -> Any:
    """Weights, and matrices in buffers, by their names."""
    model = model.double().eval()
    matrices = ((name, each) for name, each in model.named_buffers() if each.is_floating_point() and each.dim() > 1)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *matrices):
            tensor.copy_(normal(name, *tensor.shape) * 0.3)
    return model


def numbers(case: str) -> dict[str, list[float]]:
    """Of outputs at real tokens the mean square and a weighted sum, and the norms of all gradients in ascending order.

    Texts are padded on the right, on the left, and in holes; models are our own, or of transformers and linearised.
    """
    if case in OWN:
        quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = filled(LinformerForMaskedLM(LinformerConfig(**{**SIZES, **quiet, **OWN[case]})))
        generator = torch.Generator().manual_seed(zlib.crc32(b"ids"))
        ids = torch.randint(5, SIZES["vocab_size"], (3, 31), generator=generator)
        mask = torch.ones_like(ids)
        mask[0, 23:] = mask[1, :14] = mask[2, [3, 4, 19]] = 0
        output = model(input_ids=ids, attention_mask=mask, labels=torch.where(mask.bool(), ids, -100))
        found, name = output.logits, "logits"
    else:
        model = filled(linearize(build(FAMILIES[case.split()[0]]), 7, **IN_PLACE[case]))
        torch.manual_seed(0)
        inputs = example(model, 43, padded=True)
        found, name = model(**inputs)[0], "hidden"
        mask = inputs.get("attention_mask", torch.ones(found.shape[:2]))
    found = found[mask.bool()]
    weighted = (found * normal("weights", *found.shape)).sum()
    loss = output.loss if case in OWN else weighted
    loss.backward()
    gradients = sorted(part.grad.norm().item() for part in model.parameters() if part.grad is not None)
    recorded = {name: [found.square().mean().item(), weighted.item()], "gradients": gradients}
    return {"loss": [loss.item()], **recorded} if case in OWN else recorded


def trainings(folder: Path) -> dict[str, tuple[Callable, Any]]:
    """Each kind of training, by name, and its settings."""
    corpus, texts = folder / "corpus", folder / "texts.csv"
    corpus.mkdir()
    write_corpus(corpus)
    texts.write_text("text,label\n" + "".join(f"number {n},{n % 2}\n" for n in range(24)))
    usual = {"report_to": "none", "dtype": "float32", "max_steps": 30, "logging_steps": 1, "seed": 3}
    usual |= {"per_device_train_batch_size": 2, "learning_rate": 1e-3, "warmup_steps": 3, "eval_steps": 15}
    often = {"save_steps": 15, **usual}  # checkpoints of finetune are at evaluations
    encoder, teacher = write_model(folder / "encoder", "number 0 1 2"), write_teacher(folder / "teacher", "def a first")
    few = {
        "projected_dim": 5,
        "projection": "linear",
        "sliding_window": 3,
        "max_eval_samples": 3,
        "validation_fraction": 0.2,
    }
    kinds = {
        "pretrain": (PretrainSettings, {"model": ModelSettings(**PRETRAIN_SIZES), "train_file": [str(corpus)]} | often),
        "finetune": (FinetuneSettings, {"model": str(encoder), "train_file": [str(texts)]} | usual),
        "distill": (DistillSettings, {"model": str(teacher), "train_file": [str(corpus)]} | few | often),
    }
    functions = {"pretrain": pretrain.pretrain, "finetune": finetune.finetune, "distill": distill.distill}
    return {
        name: (functions[name], settings(output_dir=str(folder / name), **given))
        for name, (settings, given) in kinds.items()
    }


def losses(command: str, folder: Path) -> list[float]:
    """Of thirty updates."""
    train, settings = trainings(folder)[command]
    before = process_state()
    train(settings)
    assert changed(before) == []
    (state,) = (folder / command).rglob("checkpoint-30/trainer_state.json")
    return [entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry]


@pytest.mark.unchecked
@pytest.mark.parametrize("case", OWN | IN_PLACE)
def test_outputs_and_gradients(case):
    recorded = json.loads(RECORD.read_text())["models"][case]
    assert numbers(case) == {name: pytest.approx(values, rel=1e-12, abs=1e-12) for name, values in recorded.items()}


@pytest.mark.e2e
@pytest.mark.parametrize("command", TRAININGS)
def test_losses_of_thirty_updates(drawn, tmp_path, monkeypatch, command):
    """Float32: other processors round differently, which a training magnifies.

    The process is as before: signals, generators, threads, loggers.
    """
    monkeypatch.setattr(process, "ctypes", None)  # telling the C library anything would fail
    record = json.loads(RECORD.read_text())
    is_same = record["processor"] == torch.backends.cpu.get_cpu_capability()
    expected = pytest.approx(record["losses"][command], rel=1e-6 if is_same else 1e-2)
    assert losses(command, tmp_path) == expected


if __name__ == "__main__":
    torch.set_num_threads(1)
    content: dict[str, Any] = {"processor": torch.backends.cpu.get_cpu_capability(), "losses": {}}
    content["models"] = {case: numbers(case) for case in OWN | IN_PLACE}
    for each in TRAININGS:
        with tempfile.TemporaryDirectory() as name:
            content["losses"][each] = losses(each, Path(name))
    write_json(content, RECORD)
