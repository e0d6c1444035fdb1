"""Inputs and outputs of the layers of an encoder."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linformer_kit import linearize
from linformer_kit.linearized.layers import attention_layers
from linformer_kit.training.tracing import special_tokens, split_into_pieces, traced
from tests.families import FAMILIES, build, example


@pytest.mark.parametrize("name", ["albert", "bert", "distilbert", "mobilebert", "modernbert"])
def test_the_trace_is_what_the_model_does(name):
    """Hidden states as the model tells them itself, and layers that take in what they are given."""
    torch.manual_seed(0)
    model = build(FAMILIES[name])
    names = [layer.name for layer in attention_layers(model)]
    inputs = example(model, 31)
    with torch.no_grad(), traced(model, names) as trace:
        told = (outputs := model(**inputs, output_hidden_states=True)).hidden_states
    count = model.config.num_hidden_layers
    assert len(trace.inputs) == len(trace.outputs) == len(trace.attention) == count == len(told) - 1
    for layer in range(count):
        assert torch.equal(trace.inputs[layer], told[layer])
    assert len(trace.returned) == 1 and torch.equal(trace.returned[0], outputs.last_hidden_state)
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
    parameters = student.encoder.named_parameters()
    learned = {name.split(".")[1] for name, tensor in parameters if tensor.grad is not None}
    assert learned == {"1"} and student.embeddings.word_embeddings.weight.grad is None


# Texts longer than a teacher reads, in pieces --------------------------------------------------------------------------

CLS, SEP, PAD = 101, 102, 0


def batch_of(lengths: list[int], *, first: int, last: int, left: bool = False) -> dict[str, torch.Tensor]:
    """Texts of these lengths, special tokens included; every other token occurs once."""
    width, ids, mask, count = max(lengths), [], [], 1000
    for length in lengths:
        text = [CLS] * first + list(range(count, count + length - first - last)) + [SEP] * last
        count += length
        padding = [PAD] * (width - length)
        ids.append(padding + text if left else text + padding)
        mask.append([int(token != PAD) for token in ids[-1]])
    inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    return inputs | {"token_type_ids": inputs["input_ids"] % 7}


@given(
    lengths=st.lists(st.integers(3, 41), min_size=1, max_size=4),
    special=st.tuples(st.integers(0, 2), st.integers(0, 1)),
    longest=st.integers(5, 23),
    left=st.booleans(),
)
def test_pieces_hold_every_token_once(lengths, special, longest, left):
    first, last = special
    inputs = batch_of(lengths, first=first, last=last, left=left)
    pieces = split_into_pieces(inputs, longest=longest, special=special, pad_token_id=PAD)
    real, parts = inputs["attention_mask"] == 1, pieces.inputs
    for name in ("input_ids", "token_type_ids"):
        assert pieces.joined(parts[name])[real].tolist() == inputs[name][real].tolist()
    sizes = parts["attention_mask"].sum(dim=1)
    assert sizes.max() <= longest and parts["input_ids"].shape[1] == sizes.max()
    for ids, size in zip(parts["input_ids"], sizes, strict=True):
        assert ids[:first].tolist() == [CLS] * first and ids[size - last : size].tolist() == [SEP] * last
        assert set(ids[size:].tolist()) <= {PAD}
        assert not set(ids[first : size - last].tolist()) & {CLS, SEP}
    room = longest - first - last
    expected = [1 if length <= longest else -(-(length - first - last) // room) for length in lengths]
    assert len(sizes) == sum(expected)
    for count, own in zip(expected, sizes.split(expected), strict=True):
        assert len(own) == count and own.max() - own.min() <= 1


# MobileBERT's embeddings look at the next token, also if that is padding.
@pytest.mark.parametrize("family", ["bert", "mobilebert"])
def test_a_long_text_is_what_its_pieces_are(words, family):
    """Hidden states are those of each piece alone, those of special tokens those of the first and the last piece."""
    torch.manual_seed(0)
    teacher = build(FAMILIES[family])
    teacher.config.output_hidden_states = True  # tuples among the outputs
    names = [layer.name for layer in attention_layers(teacher)]
    first, last = special_tokens(words)
    inputs = batch_of([29, 13], first=first, last=last)
    pad = words.pad_token_id
    teacher.double()  # float32 rounding in the 24 layers of MobileBERT exceeds 1e-3 on some processors
    teacher.get_input_embeddings().weight.data[pad] = 0  # as in trained models
    ids = torch.where(inputs["attention_mask"] == 1, inputs["input_ids"] % 11 + 3, pad)
    inputs |= {"input_ids": ids, "token_type_ids": torch.zeros_like(ids)}
    pieces = split_into_pieces(inputs, longest=17, special=(first, last), pad_token_id=pad)
    with torch.no_grad(), traced(teacher, names) as trace:
        teacher(**pieces.inputs)
    body = inputs["input_ids"][0, first : 29 - last]
    halves = [
        torch.cat([inputs["input_ids"][0, :first], half, inputs["input_ids"][0, 29 - last : 29]])[None]
        for half in body.tensor_split(2)
    ]
    found = []
    for half in halves:
        with torch.no_grad(), traced(teacher, names) as own:
            teacher(input_ids=half)
        found.append(own)
    for kind in ("inputs", "outputs", "attention"):
        for layer, joined in enumerate(map(pieces.joined, getattr(trace, kind))):
            one, two = (getattr(own, kind)[layer][0] for own in found)
            expected = torch.cat([one[: len(one) - last], two[first:]])
            torch.testing.assert_close(joined[0, :29], expected, rtol=1e-3, atol=1e-3)
            assert joined.shape[:2] == (2, 29)
