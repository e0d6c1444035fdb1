"""AdamW's groups: those of transformers' Trainer, and E and F by themselves."""

from __future__ import annotations

import pytest
import torch
from transformers import Trainer, TrainingArguments

from linformer_kit import LinformerForMaskedLM
from linformer_kit.training.loop import adamw
from tests.families import FAMILIES
from tests.families import build as build_family
from tests.training.conftest import small_settings

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
