"""What a student is taught: errors, answers, and which layer learns from which."""

from __future__ import annotations

import pytest
import torch
import transformers
from linformer_kit.training.distillation import _of_layers, _Restart, learning_rate_share, relative_error
from transformers import TrainerState

from linformer_kit import linearize
from linformer_kit.experiments.quality.families import FAMILIES, build, example
from linformer_kit.linearized.depth import keep_layers, layers_to_keep
from linformer_kit.linearized.layers import attention_layers
from linformer_kit.training.tasks.tracing import Trace, layer_names, traced


def test_relative_error_is_one_for_the_mean_and_zero_for_the_teacher():
    torch.manual_seed(0)
    teacher, real = torch.randn(3, 5, 7), torch.tensor([[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]]).bool()
    mean = teacher[real].mean(dim=0).expand_as(teacher)
    for student, expected in ((teacher, 0.0), (mean, 1.0)):
        student = torch.where(real[..., None], student, 1e4)
        distance, spread = relative_error(student, teacher, real)
        assert distance.shape == spread.shape == (3,)
        assert (distance.sum() / spread.sum()).item() == pytest.approx(expected, abs=1e-6)


def test_a_teacher_stands_for_several_layers():
    """Each of the student's layers takes in what comes before those that it stands for, and ends where they end."""
    trace = Trace(*([torch.tensor(10 * kind + layer) for layer in range(6)] for kind in range(3)))
    few = _of_layers(trace, [1, 3, 5])
    assert [[int(each) for each in part] for part in (few.inputs, few.outputs, few.attention)] == [
        [0, 2, 4],
        [11, 13, 15],
        [21, 23, 25],
    ]
    assert _of_layers(trace, None) is trace


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("vit", "deit", "dinov2")])
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


def test_each_part_has_a_warm_up_and_falls_to_zero():
    shares = [learning_rate_share(update, alone=8, updates=20, warmup=3, joint=0.5) for update in range(21)]
    assert shares[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0]) and shares[7] == pytest.approx(0.2)
    assert shares[8:12] == pytest.approx([0.125, 0.25, 0.375, 0.5]) and shares[19] == pytest.approx(0.5 / 9)
    assert shares[20] == 0
    assert max(shares[:8]) == 1 and max(shares[8:]) == 0.5
    whole = [learning_rate_share(update, alone=0, updates=4, warmup=9, joint=1.0) for update in range(4)]
    assert whole == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5])  # a warm-up of half of it at most


def test_the_optimizer_forgets_where_the_layers_begin_to_learn_together():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones(3)
    optimizer.step()
    restart, state = _Restart(5), TrainerState()
    for state.global_step, known in ((4, 1), (6, 1), (5, 0)):
        restart.on_step_begin(None, state, None, optimizer=optimizer)
        assert len(optimizer.state) == known


def test_names():
    names = ["encoder.layer.0.attention.self", "encoder.layer.10.attention.self"]
    assert layer_names(names) == ["encoder.layer.0", "encoder.layer.10"]
    albert = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    assert layer_names([albert]) == ["encoder.albert_layer_groups.0.albert_layers.0"]


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [11]), (6, [1, 3, 5, 7, 9, 11]), (5, [1, 3, 6, 8, 11]), (12, [*range(12)])]
)
def test_layers_of_a_smaller_student(count, expected):
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=6, num_hidden_layers=12, num_attention_heads=2, intermediate_size=5
    )
    model = transformers.BertModel(config)
    layers = list(model.encoder.layer)
    assert layers_to_keep(model, count) == expected
    keep_layers(model, expected)
    assert list(model.encoder.layer) == [layers[number] for number in expected]
    assert model.config.num_hidden_layers == count
