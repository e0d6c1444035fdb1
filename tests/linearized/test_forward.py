"""What `forward` of a linearised model does itself: called directly, through a base model, compiled and checkpointed."""

from __future__ import annotations

import inspect

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertModel, DataCollatorWithFlattening

from linformer_kit import InputError, LinformerModel, linearize
from linformer_kit.linearized import products
from tests.conftest import as_in_the_paper, doubled, replica_of, tokens, values_of
from tests.families import FAMILIES, build, example

SIZES = FAMILIES["bert"].sizes
LENGTH = SIZES["max_position_embeddings"]


def of(name: str, **options: object):
    torch.manual_seed(0)
    return as_in_the_paper(build(FAMILIES[name]), 7, **options)


@pytest.mark.parametrize(("name", "window"), values_of(FAMILIES, [0, 5]))
@torch.no_grad()
def test_attentions_of_every_family(name, window):
    """With a column for each slot and each neighbour."""
    # In float64: MobileBERT has no LayerNorm, so rounding grows from layer to layer.
    model = of(name, sliding_window=window).double()
    local = {layer.split(".")[1] for layer in model.config.linformer["local_layers"]}
    inputs = example(model, 31)
    shown = model.forward(**inputs, output_attentions=True)
    assert len(shown.attentions) == model.config.num_hidden_layers
    for layer, mapping in enumerate(shown.attentions):
        tokens = mapping.shape[2]
        assert mapping.shape[:2] == (2, model.config.num_attention_heads)
        assert mapping.shape[3] == (tokens if str(layer) in local else 7 + window)
        torch.testing.assert_close(mapping.sum(-1), torch.ones_like(mapping[..., 0]))
    plain = model.forward(**inputs)
    assert not plain.attentions
    torch.testing.assert_close(plain[0], shown[0], rtol=1e-6, atol=1e-6)  # weights of local layers are in float32


@torch.no_grad()
def test_weights_of_layers_with_a_window():
    """They see the same tokens as before, padding and window included; all other weights are zero."""
    model = of("modernbert")
    inputs = example(model, 31, padded=True)
    real = inputs["attention_mask"].bool()
    shown, plain = model(**inputs, output_attentions=True), model(**inputs)
    torch.testing.assert_close(shown[0][real], plain[0][real], rtol=1e-4, atol=1e-5)
    distance = (torch.arange(31)[:, None] - torch.arange(31)).abs()
    for mapping in shown.attentions[1:]:
        rows = mapping.transpose(1, 2)[real]  # [tokens, heads, keys]
        assert not rows.masked_select((distance > 4).expand(2, 31, 31)[real][:, None]).any()
        assert not mapping[1, :, : real[1].sum(), real[1].sum() :].any()


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert"])
def test_longer_texts_are_rejected_at_every_door(name):
    model = of(name)
    inputs = example(model, LENGTH + 1)
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    message = f"^sequence length: expected at most {LENGTH}, got {LENGTH + 1}$"
    for call in (model, model.forward, model.base_model.forward):
        for given in (inputs, {"inputs_embeds": embeds}):
            with pytest.raises(InputError, match=message):
                call(**given)
        with pytest.raises(InputError, match=message):
            call(inputs["input_ids"])


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert", "vit"])
def test_arguments_that_the_original_rejects_are_rejected(name):
    """Too many by place, and one by place and by name."""
    original, model = build(FAMILIES[name]), of(name)
    inputs = example(model, 11)[model.main_input_name]
    for arguments, named in (((inputs, *[None] * 40), {}), ((inputs,), {model.main_input_name: inputs})):
        for each in (original, model, model.forward, model.base_model):
            with pytest.raises(TypeError, match=r"positional argument|multiple values"):
                each(*arguments, **named)


@pytest.mark.e2e
@pytest.mark.unchecked
def test_compiled_once_for_every_length():
    model = as_in_the_paper(BertForMaskedLM(BertConfig(**SIZES | {"num_hidden_layers": 2})).eval(), 7)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for length in (31, 17):
        inputs = example(model, length, padded=True)
        torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits)


@pytest.mark.e2e
@pytest.mark.unchecked
@torch.no_grad()
def test_one_program_for_every_length():
    """Also with fewer tokens than slots; one after the global token is too few for torch."""
    model = linearize(BertModel(BertConfig(**SIZES | {"num_hidden_layers": 1})).eval(), 7)
    length = torch.export.Dim("length", min=3, max=LENGTH)
    inputs = example(model, 31, padded=True)
    sizes = {name: {1: length} for name in inputs}
    program = torch.export.export(model, (), inputs, dynamic_shapes=sizes).module()
    for length in (5, LENGTH):
        inputs = example(model, length, padded=True)
        real = inputs["attention_mask"].bool()
        torch.testing.assert_close(program(**inputs)[0][real], model(**inputs)[0][real], rtol=1e-4, atol=1e-4)


def test_activation_checkpointing_repeats_what_was_asked_for(model):
    model.train()
    inputs = example(model, 31)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.config.attention_probs_dropout_prob = 0.0

    def gradients():
        model.zero_grad()
        shown = model(**inputs, output_attentions=True)
        (shown[0].square().sum() + shown.attentions[0].square().sum()).backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    plain = gradients()
    model.activation_checkpointing_enable()
    for ours, theirs in zip(gradients(), plain, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_signature_is_that_of_the_model_it_was(model):
    assert inspect.signature(model.forward) == inspect.signature(BertForMaskedLM(BertConfig(**SIZES)).forward)


@pytest.mark.parametrize("name", ["is_causal", "attn_mask", "head_mask", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"])
def test_arguments_that_slots_cannot_obey_are_rejected(model, name):
    ids = torch.ones(1, 5, dtype=torch.long)
    for each in (model, model.base_model):
        with pytest.raises(InputError, match=f"^{name}: expected none with linear attention"):
            each(ids, **{name: torch.ones(5, 5) if name != "is_causal" else True})
        each(ids, is_causal=False)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("linear", [True, False])
def test_packed_texts_are_rejected(model, config, linear, first):
    """As `DataCollatorWithFlattening` makes them; padding after, and positions in another order, are none."""
    each = model if linear else LinformerModel(config())
    collate = DataCollatorWithFlattening(position_ids_start=first)
    packed = collate([{"input_ids": [5, 7, 9]}, {"input_ids": [6, 8]}])
    with pytest.raises(InputError, match=r"^position_ids: expected those of one text .*, got positions that start aga"):
        each(packed["input_ids"], position_ids=packed["position_ids"])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    each(packed["input_ids"], attention_mask=mask, position_ids=packed["position_ids"])
    each(packed["input_ids"], position_ids=torch.tensor([[3, 0, 1, 2, 4]]))


@pytest.mark.parametrize("sliding_window", [0, 5])
def test_keys_of_other_tokens_than_the_queries_are_rejected(sliding_window):
    """Those of prefix tuning would shift windows and neighbours, and be the global token."""
    model = of("bert", sliding_window=sliding_window, global_tokens=1)
    config = PrefixTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    with pytest.raises(InputError, match=r"^past_key_values: expected none .* each of 11 tokens, got 14 keys"):
        get_peft_model(model, config)(**example(model, 11))


@pytest.mark.parametrize("kind", [BertModel, BertForMaskedLM])
@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
def test_replicas_of_data_parallel_have_weights_of_their_own(monkeypatch, kind, sharing):
    """As with an accelerator, where linear maps keep their own `forward`."""
    monkeypatch.setattr(products, "_fast_formats", set)
    model = as_in_the_paper(kind(BertConfig(**FAMILIES["bert"].sizes)).eval(), 7, sharing=sharing)
    ids = tokens(2, 19)
    before = model(ids)[0]
    torch.testing.assert_close(replica_of(model)(ids)[0], doubled(model)(ids)[0])
    assert torch.equal(model(ids)[0], before)


@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
def test_a_projection_is_trained_and_saved_as_a_whole_by_peft(sharing):
    """PEFT wraps each module of the name, E and F among them, and trains a copy, which must be called."""
    model = of("bert", sharing=sharing)
    inputs = example(model, 31)
    before = model(**inputs)[0]
    adapted = get_peft_model(model, LoraConfig(target_modules=["query"], modules_to_save=["linformer"])).eval()
    torch.testing.assert_close(adapted(**inputs)[0], before, rtol=0, atol=0)
    adapted(**inputs)[0].square().mean().backward()
    saved = [each for name, each in adapted.named_parameters() if "linformer.modules_to_save" in name]
    assert len(saved) == (6 if sharing == "headwise" else 1)
    assert all(each.grad is not None and each.grad.abs().max() > 0 for each in saved)
