"""Exact windows against transformers' `sdpa`: outputs, gradients, weights, masks of all kinds, and what is refused."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DynamicCache,
    ModernBertConfig,
    ModernBertModel,
    StaticCache,
)

import linformer_kit as lk
from linformer_cli.cli import main
from linformer_kit.linearized import windows
from linformer_kit.linearized.windows import WindowMask
from linformer_kit.operator.kernels import FastKernels
from tests.conftest import values_of, write_teacher

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


def from_config(name, **fields):
    """A model of transformers whose first and last layers have a window, if `fields` do not say otherwise."""
    fields = SIZES | GROUPED | {"sliding_window": 9, "layer_types": LAYERS} | fields
    config = AutoConfig.for_model(name, **{field: value for field, value in fields.items() if value is not None})
    return AutoModel.from_config(config, attn_implementation="sdpa").double().eval()


FULL_AT_END = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "global_head_dim": 12}
GEMMA4 = FULL_AT_END | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
NEOMME = {"hidden_size": 32, "head_dim": 16, "per_layer_config": {1: {"sliding_window": None}}}
MODELS = {
    "modernbert": modernbert,
    "ultrabert": lambda: from_config("ultrabert"),
    "neomme": lambda: from_config("neomme", **NEOMME),
    "embedding_gemma2": lambda: from_config("embedding_gemma2_text", **FULL_AT_END),
    "gemma3, both sides": lambda: from_config("gemma3_text", use_bidirectional_attention=True),
    "gemma4, both sides": lambda: from_config("gemma4_text", use_bidirectional_attention="all", **GEMMA4),
    "gemma3, causal": lambda: from_config("gemma3_text"),
    "mistral": lambda: from_config("mistral", layer_types=None),
    "qwen2": lambda: from_config("qwen2", use_sliding_window=True),
}


DECODERS = ["gemma3, causal", "mistral", "qwen2"]


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
@pytest.mark.parametrize(
    ("name", "padding"), values_of(MODELS, ["none", "padding and holes"])
)  # also outputs of padding
def test_outputs_and_gradients_are_those_of_sdpa(name, padding, calls):
    torch.manual_seed(0)
    theirs, mask = MODELS[name](), masks()[padding]
    ours, ids = with_windows(theirs), torch.randint(3, 97, (3, N))
    options = {} if name in ("modernbert", "ultrabert", "neomme", "embedding_gemma2") else {"use_cache": False}
    outputs = [model(ids, attention_mask=mask, **options).last_hidden_state for model in (theirs, ours)]
    assert calls.called and outputs[1].isfinite().all()
    # Norms of the others round to float32.
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-12 if name == "modernbert" else 1e-5)
    gradients = [
        torch.autograd.grad(output.square().sum(), [*model.parameters()], allow_unused=True)
        for model, output in zip((theirs, ours), outputs, strict=True)
    ]
    for expected, got in zip(*gradients, strict=True):
        if expected is not None:
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * float(expected.abs().max()) + 1e-9)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "cache"), values_of(DECODERS, [{}, {"cache_implementation": "static"}, {"use_cache": False}])
)
def test_generation_is_that_of_sdpa(name, cache, calls):
    torch.manual_seed(0)
    config = MODELS[name]().config
    config.eos_token_id = None
    theirs = AutoModelForCausalLM.from_config(config).double().eval()
    ids, mask = torch.randint(3, 97, (2, 301)), torch.ones(2, 301, dtype=torch.long)
    mask[0, :37] = 0
    options = {"max_new_tokens": 5, "do_sample": False, "disable_compile": True, **cache}
    expected, got = (model.generate(ids, attention_mask=mask, **options) for model in (theirs, with_windows(theirs)))
    assert calls.called
    assert torch.equal(got, expected)


def test_layers_that_read_their_mask_are_refused():
    model = with_windows(from_config("doge"))
    with pytest.raises(AttributeError, match="attn_implementation: expected sdpa"):
        model(torch.randint(3, 97, (1, N)), use_cache=False)


def assert_as_eager(theirs, ours, ids, **options):
    """Outputs and attention weights."""
    theirs.set_attn_implementation("eager")
    expected, got = (model(ids, output_attentions=True, **options) for model in (theirs, ours))
    # Both compute a softmax in float32.
    torch.testing.assert_close(got.last_hidden_state, expected.last_hidden_state, rtol=0, atol=1e-5)
    assert len(got.attentions) == len(expected.attentions) == 3
    for one, other in zip(expected.attentions, got.attentions, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-5)


@pytest.mark.e2e
@pytest.mark.parametrize(("name", "n"), values_of(MODELS, [7, N]))  # fewer tokens than the window, and more
@torch.no_grad()
def test_attention_weights_are_those_of_eager(name, n):
    """Without padding `sdpa` gets no mask, of full layers and of short texts: a decoder is causal all the same."""
    torch.manual_seed(0)
    theirs = MODELS[name]()
    assert_as_eager(theirs, with_windows(theirs), torch.randint(3, 97, (2, n)))


@pytest.mark.e2e
@pytest.mark.parametrize(("name", "cache"), values_of(DECODERS, [DynamicCache, lambda config: StaticCache(config, 97)]))
@torch.no_grad()
def test_attention_weights_with_a_cache_are_those_of_eager(name, cache):
    torch.manual_seed(0)
    theirs = MODELS[name]()
    ours, pasts = with_windows(theirs), [cache(config=theirs.config) for _ in range(2)]
    theirs.set_attn_implementation("eager")
    for n in (31, 3, 1):
        ids = torch.randint(3, 97, (2, n))
        expected, got = (
            model(ids, past_key_values=past, output_attentions=True)
            for model, past in zip((theirs, ours), pasts, strict=True)
        )
        for one, other in zip(expected.attentions, got.attentions, strict=True):
            torch.testing.assert_close(other, one, rtol=0, atol=1e-5)
        torch.testing.assert_close(got.last_hidden_state, expected.last_hidden_state, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral3"])
def test_windows_of_the_configuration_are_found(name, caplog):
    """Their layers have no attribute `sliding_window`."""
    caplog.set_level("INFO", logger="linformer_kit")
    fields = {"layer_types": None, "num_local_experts": 2, "hidden_size": 32, "head_dim": 16, "intermediate_size": 32}
    theirs, ids = from_config(name, **fields).float(), torch.randint(3, 97, (1, 301))
    ours = lk.optimize(copy.deepcopy(theirs))
    assert ours.config._attn_implementation == "exact_windows" and caplog.text.count("run in blocks") == 1
    expected, got = (model(ids, use_cache=False).last_hidden_state for model in (theirs, ours))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    assert not torch.equal(got, expected), "nothing ran in blocks"


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("llama", {}, "LlamaModel: windows in blocks: False"),  # which does not read this field
        ("doge", {}, "DogeModel: windows in blocks: False"),  # its layers compute with the mask
        ("gemma3_text", {"attn_implementation": "eager"}, "layers with a sliding window stay at eager"),
    ],
)
def test_what_is_not_switched_is_said(name, fields, said, caplog):
    caplog.set_level("INFO", logger="linformer_kit")
    implementation = fields.pop("attn_implementation", "sdpa")
    model = from_config(name, **{"layer_types": None} | fields)
    model.set_attn_implementation(implementation)
    lk.optimize(model)
    assert model.config._attn_implementation == implementation and said in caplog.text


@pytest.mark.e2e
def test_dropout_with_texts_of_other_lengths_is_finite(calls):
    """Dropout takes products; a query within a hole sees no token at all."""
    model, mask = with_windows(modernbert(attention_dropout=0.3)).train(), masks()["padding and holes"]
    output = model(torch.randint(3, 97, (3, N)), attention_mask=mask).last_hidden_state
    output[mask.bool()].sum().backward()
    assert calls.called and output.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.e2e
def test_training_in_mixed_precision_is_that_of_sdpa(calls):
    """Both differ from float64 by rounding to bfloat16."""
    torch.manual_seed(0)
    exact, mask = modernbert(initializer_range=0.1), masks()["padding and holes"]
    ids, results = torch.randint(3, 97, (3, N)), []
    theirs = copy.deepcopy(exact).float()
    for model in (exact, theirs, with_windows(theirs)):
        with torch.autocast("cpu", torch.bfloat16, enabled=model is not exact):
            output = model.train()(ids, attention_mask=mask).last_hidden_state[mask.bool()]
        loss = output.double().square().mul(torch.linspace(0, 1, 24, dtype=torch.float64)).mean()
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        results.append(torch.cat([output.detach().flatten(), *(each.flatten() for each in gradients)]).double())
    parts = [slice(0, int(mask.sum()) * 24), slice(int(mask.sum()) * 24, None)]
    for part in parts:
        allowed, error = ((each[part] - results[0][part]).norm() for each in results[1:])
        assert 0 < error <= 1.5 * allowed
    assert calls.called


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
    sizes = {"dtype": torch.float32, "batch_size": 2, "q_length": N, "kv_length": N, "device": "cpu", "local_size": 9}
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
        axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=1031)}
        example = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        exported = torch.export.export(ours, (), example, dynamic_shapes=dict.fromkeys(example, axes))
        scores = [node.args[0].meta["val"] for node in exported.graph.nodes if "scaled_dot" in str(node.target)]
        assert [str(part.shape[2]) == "64" for part in scores] == [False, True, True]  # in blocks
        program = exported.module()
        for n in (1, 17, 63, 64, 65, 131, 1024):
            mask = torch.ones(3, n, dtype=torch.long)
            mask[1, (n + 1) // 2 :] = 0
            mask[2, : n // 3] = 0
            inputs = {"input_ids": torch.randint(3, 97, (3, n)), "attention_mask": mask}
            got, expected = (model(**inputs).last_hidden_state for model in (program, theirs))
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.e2e
def test_gradients_with_checkpointing_are_those_of_sdpa(calls):
    torch.manual_seed(0)
    theirs, ids = modernbert(), torch.randint(3, 97, (2, N))
    ours, gradients = with_windows(theirs), []
    ours.gradient_checkpointing_enable()
    for model in (theirs, ours):
        model.train()(ids).last_hidden_state.square().sum().backward()
        gradients.append([each.grad for each in model.parameters() if each.grad is not None])
    assert calls.call_count == 4  # two layers with windows, computed twice
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.e2e
@pytest.mark.unchecked
@torch.no_grad()
def test_layers_compile_on_their_own():
    """Their mask is made outside of the compiled code."""
    torch.manual_seed(0)
    theirs, ids = modernbert(), torch.randint(3, 97, (2, N))
    ours, expected = with_windows(theirs), theirs(ids).last_hidden_state
    for layer in ours.layers:
        layer.compile(backend="eager")
    torch.testing.assert_close(ours(ids).last_hidden_state, expected, rtol=0, atol=1e-12)


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
    assert calls.called
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.e2e
@pytest.mark.unchecked
def test_commands_train_an_encoder_with_windows(tmp_path, monkeypatch, calls):
    monkeypatch.setattr(windows, "_WORTH", 0)  # texts of a test are short
    words = "number was good bad fine poor"
    special = {"cls_token_id": 0, "sep_token_id": 2, "local_attention": 4, "hidden_size": 36}
    teacher = str(write_teacher(tmp_path / "teacher", words, "ModernBertForMaskedLM", **special))
    texts = tmp_path / "texts.csv"
    rows = [f"{' '.join(words.split()[: 2 + row % 4])},{row % 2}" for row in range(16)]
    texts.write_text("\n".join(["text,label", *rows]))
    options = ["--per_device_train_batch_size", "4", "--max_steps", "2", "--warmup_steps", "1", "--report_to", "none"]
    data = ["--train_file", str(texts), "--validation_file", str(texts)]
    main(["finetune", teacher, "--output_dir", str(tmp_path / "classifier"), *data, *options])
    assert calls.called


@pytest.mark.slow
@pytest.mark.unchecked
def test_an_exported_classifier_answers_as_before_for_padding_on_either_side(tmp_path):
    """Its class is read from the first token, which is padding in texts padded on the left."""
    sizes = {"local_attention": 4, "hidden_size": 36}
    classifier = write_teacher(tmp_path / "model", "good bad", "ModernBertForSequenceClassification", **sizes)
    main(["export", str(classifier), str(tmp_path / "exported")])  # compares
    assert (tmp_path / "exported" / "model.onnx").exists()
