"""Exact windows against transformers' `sdpa`: outputs, gradients, weights, masks of all kinds, and what is refused."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from transformers import (
    AutoModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    MistralConfig,
    MistralModel,
    ModernBertConfig,
    ModernBertModel,
)

import linformer_kit as lk
from linformer_kit.linearized import windows
from linformer_kit.linearized.windows import WindowMask
from linformer_kit.operator.kernels import FastKernels

N = 701
SIZES = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 29,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 1031,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 1, "head_dim": 12}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]


def modernbert(**fields):
    config = ModernBertConfig(**SIZES | {"local_attention": 14, "cls_token_id": 1, "sep_token_id": 2} | fields)
    return ModernBertModel(config).double().eval()


def gemma(both_sides):
    fields = {"sliding_window": 9, "layer_types": LAYERS, "use_bidirectional_attention": both_sides}
    return Gemma3TextModel(Gemma3TextConfig(**SIZES, **GROUPED, **fields)).double().eval()


MODELS = {
    "modernbert": modernbert,
    "gemma, both sides": lambda: gemma(True),
    "gemma, causal": lambda: gemma(False),
    "mistral": lambda: MistralModel(MistralConfig(**SIZES, **GROUPED, sliding_window=9)).double().eval(),
}


def with_windows(model):
    model = copy.deepcopy(model)
    model.set_attn_implementation("exact_windows")
    return model


def masks():
    padded = torch.ones(3, N, dtype=torch.long)
    padded[0, 600:] = 0  # on the right
    padded[1, :123] = 0  # on the left
    padded[2, 200:263] = 0  # a hole that is wider than the window
    return {"none": None, "padding and holes": padded}


@pytest.fixture
def calls():
    """The calls of attention in blocks."""
    with mock.patch.object(FastKernels, "attention", autospec=True, side_effect=FastKernels.attention) as called:
        yield called


@pytest.mark.e2e
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padding", masks())
def test_outputs_and_gradients_are_those_of_sdpa(name, padding, calls):
    torch.manual_seed(0)
    theirs, mask = MODELS[name](), masks()[padding]
    ours, ids = with_windows(theirs), torch.randint(3, 97, (3, N))
    real = torch.ones_like(ids).bool() if mask is None else mask.bool()
    options = {} if name == "modernbert" else {"use_cache": False}
    outputs = [model(ids, attention_mask=mask, **options).last_hidden_state for model in (theirs, ours)]
    assert calls.called and outputs[1].isfinite().all()
    # Norms of the decoders round to float32.
    torch.testing.assert_close(outputs[1][real], outputs[0][real], rtol=0, atol=1e-12 if name == "modernbert" else 1e-5)
    if name == "modernbert":
        gradients = [
            torch.autograd.grad(output[real].square().sum(), [*model.parameters()])
            for model, output in zip((theirs, ours), outputs, strict=True)
        ]
        for expected, got in zip(*gradients, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.e2e
def test_attention_weights_are_those_of_eager():
    torch.manual_seed(0)
    theirs = modernbert(attn_implementation="eager")
    ours, ids = with_windows(theirs), torch.randint(3, 97, (3, N))
    expected, got = (model(ids, output_attentions=True).attentions for model in (theirs, ours))
    assert len(got) == len(expected) == 3
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-6)  # its softmax is in float32


@pytest.mark.e2e
def test_dropout_with_texts_of_other_lengths_is_finite(calls):
    """Dropout takes products; a query within a hole sees no token at all."""
    model, mask = with_windows(modernbert(attention_dropout=0.3)).train(), masks()["padding and holes"]
    output = model(torch.randint(3, 97, (3, N)), attention_mask=mask).last_hidden_state
    output[mask.bool()].sum().backward()
    assert calls.called and output.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_short_texts_and_a_cache_take_sdpa(calls):
    model = with_windows(modernbert())
    model(torch.randint(3, 97, (2, 131)))
    decoder = with_windows(MODELS["mistral"]())
    past = decoder(torch.randint(3, 97, (1, 131)), use_cache=True).past_key_values
    decoder(torch.randint(3, 97, (1, N)), past_key_values=past)
    assert not calls.called


def test_an_overlay_that_shows_more_than_the_window_takes_sdpa():
    """As for images in decoders, whose tokens see all of the same image."""
    far = {"mask_function": lambda batch, head, query, key: (query - key).abs() % 300 < 9, "use_vmap": False}
    sizes = {"batch_size": 2, "q_length": N, "kv_length": N, "device": "cpu", "local_size": 9}
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    assert isinstance(windows.window_mask(**far, **sizes, **skips), torch.Tensor)
    near = {"mask_function": lambda batch, head, query, key: (query - key).abs() < 9, "use_vmap": False}
    assert isinstance(windows.window_mask(**near, **sizes, **skips), WindowMask)


@pytest.mark.e2e
@pytest.mark.unchecked
def test_compiled_and_exported_for_any_length():
    torch.manual_seed(0)
    theirs = modernbert().float()
    ours = with_windows(theirs)
    ids = torch.randint(3, 97, (2, N))
    with torch.no_grad():
        compiled = torch.compile(ours, backend="eager")(ids).last_hidden_state
        torch.testing.assert_close(compiled, theirs(ids).last_hidden_state, rtol=0, atol=1e-4)
        length = torch.export.Dim("length", min=3, max=1031)
        example = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        program = torch.export.export(
            ours, (), example, dynamic_shapes={name: {1: length} for name in example}
        ).module()
        for n in (5, 131, 1024):
            mask = torch.ones(2, n, dtype=torch.long)
            mask[1, n // 2 :] = 0
            inputs = {"input_ids": ids.repeat(1, 2)[:, :n], "attention_mask": mask}
            got, expected = (model(**inputs).last_hidden_state[mask.bool()] for model in (program, theirs))
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.e2e
def test_saved_files_say_nothing_of_it(tmp_path):
    torch.manual_seed(0)
    theirs = modernbert()
    with_windows(theirs).save_pretrained(tmp_path)
    assert "exact_windows" not in (tmp_path / "config.json").read_text()
    loaded = AutoModel.from_pretrained(tmp_path, attn_implementation="exact_windows").double()
    assert type(loaded) is ModernBertModel and loaded.config._attn_implementation == "exact_windows"


def test_terms_that_are_not_computed_are_refused():
    with pytest.raises(lk.InputError, match="without softcap"):
        windows.window_attention(torch.nn.Module(), *[torch.ones(1, 2, 3, 5)] * 3, None, softcap=2.0)


@pytest.mark.e2e
def test_layers_of_a_linearised_model_keep_their_windows_in_blocks(calls):
    torch.manual_seed(0)
    theirs, mask = modernbert(), masks()["padding and holes"]
    ids = torch.randint(3, 97, (3, N))
    linear = lk.linearize(copy.deepcopy(theirs), projected_dim=1031, sliding_window=0, global_tokens=0)
    got, expected = (model(ids, attention_mask=mask).last_hidden_state[mask.bool()] for model in (linear, theirs))
    in_blocks = [call for call in calls.call_args_list if (tokens := call.args[5]) and tokens.visible is not None]
    assert len(in_blocks) == 2  # the first layer has no window
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
