"""Linearising some of the layers: the others keep their full attention, with padding, in saved models and commands."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModel

from linformer_kit import InputError, linearize
from linformer_kit.linearized.layers import attention_layers
from tests.conftest import as_in_the_paper
from tests.families import FAMILIES, build, example


def of(name: str, layers=(1,), **options: object):
    torch.manual_seed(0)
    return as_in_the_paper(build(FAMILIES[name]), 7, layers=layers, **options)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "modernbert", "vit"])
@torch.no_grad()
def test_layers_before_the_first_linear_one_are_those_of_the_teacher(name):
    torch.manual_seed(0)
    teacher = build(FAMILIES[name])
    possible = [number for number, layer in enumerate(attention_layers(teacher)) if not layer.local]
    student = of(name, possible[-1:])
    inputs = example(teacher, 31, padded=True)
    real = inputs["attention_mask"].bool() if "attention_mask" in inputs else slice(None)
    ours, theirs = (model(**inputs, output_hidden_states=True).hidden_states for model in (student, teacher))
    for layer in range(possible[-1] + 1):
        torch.testing.assert_close(ours[layer][real], theirs[layer][real], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ours[possible[-1] + 1][real], theirs[possible[-1] + 1][real], atol=1e-3)


@pytest.mark.parametrize(
    ("name", "layers"), [("modernbert", [1]), *(("bert", layers) for layers in ([9], [-1], [1, 1], [True, 1]))]
)
def test_other_layers_and_those_with_a_window_of_their_own_are_rejected(name, layers):
    with pytest.raises(InputError, match=r"^layers: expected (a number|one or more of \[0.*\], each once), got "):
        of(name, layers)


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert", "vit"])
@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
@torch.no_grad()
def test_without_linear_layers_nothing_is_approximated(name, sharing, tmp_path):
    """Windows and products only; also saved, and longer."""
    torch.manual_seed(0)
    teacher = build(FAMILIES[name])
    student = linearize(copy.deepcopy(teacher), layers=[], sharing=sharing)
    inputs = example(teacher, 31, padded=True)
    real = inputs["attention_mask"].bool() if "attention_mask" in inputs else slice(None)
    expected = teacher(**inputs)[0][real]
    torch.testing.assert_close(student(**inputs)[0][real], expected, rtol=1e-4, atol=1e-5)
    assert student.state_dict().keys() == teacher.state_dict().keys() and not student.projections()
    student.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**inputs)[0], student(**inputs)[0])
    if name == "bert":
        loaded.resize_sequence_length(122)
        torch.testing.assert_close(loaded(**inputs)[0][real], expected, rtol=1e-4, atol=1e-5)


def test_a_model_of_windows_only_has_no_linear_layers():
    family = FAMILIES["modernbert"]
    local = {"layer_types": ["sliding_attention"] * 3}
    model = build(family._replace(sizes=family.sizes | local))
    with pytest.raises(
        InputError, match=r"^model: expected at least one layer with global .*; layers=\[\] keeps them$"
    ):
        linearize(model)
    assert len(linearize(model, layers=[]).config.linformer["local_layers"]) == 3
