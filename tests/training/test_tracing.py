"""Inputs and outputs of the layers of an encoder."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import linearize
from linformer_kit.linearized.layers import attention_layers
from linformer_kit.training.tracing import traced
from tests.families import FAMILIES, build, example


@pytest.mark.parametrize("name", ["albert", "bert", "distilbert", "mobilebert", "modernbert"])
def test_the_trace_is_what_the_model_does(name):
    """Hidden states as the model tells them itself, and layers that take in what they are given."""
    torch.manual_seed(0)
    model = build(FAMILIES[name])
    names = [layer.name for layer in attention_layers(model)]
    inputs = example(model, 31)
    with torch.no_grad(), traced(model, names) as trace:
        told = model(**inputs, output_hidden_states=True).hidden_states
    count = model.config.num_hidden_layers
    assert len(trace.inputs) == len(trace.outputs) == len(trace.attention) == count == len(told) - 1
    for layer in range(count):
        assert torch.equal(trace.inputs[layer], told[layer])
    before = hooks(model)
    given = [torch.randn_like(hidden) for hidden in trace.inputs]
    with torch.no_grad(), traced(model, names, given) as other:
        model(**inputs)
    assert all(a is b for a, b in zip(other.inputs, given, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(other.outputs, trace.outputs, strict=True))
    assert hooks(model) == before  # transformers has hooks of its own


def hooks(model: torch.nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_layers_that_learn_alone_have_no_gradient_in_common():
    torch.manual_seed(0)
    teacher, student = build(FAMILIES["bert"]), linearize(build(FAMILIES["bert"]), 7)
    names = student.attention_names()
    inputs = example(teacher, 31)
    with torch.no_grad(), traced(teacher, names) as theirs:
        teacher(**inputs)
    with traced(student, names, theirs.inputs) as ours:
        student(**inputs)
    ours.outputs[1].sum().backward()
    learned = {
        name.split(".")[2]
        for name, tensor in student.encoder.named_parameters(prefix="encoder")
        if tensor.grad is not None
    }
    assert learned == {"1"} and student.embeddings.word_embeddings.weight.grad is None
