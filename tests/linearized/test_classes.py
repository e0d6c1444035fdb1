"""Linearised models: saving, loading, lengths, and rejected uses."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertLMHeadModel,
    BertModel,
    EncoderDecoderModel,
    EsmConfig,
    EsmForMaskedLM,
    VisionEncoderDecoderModel,
    VisionTextDualEncoderModel,
    modeling_utils,
)
from transformers.utils import output_capturing

from linformer_cli.settings import LinearizeSettings
from linformer_kit import InputError, LinformerConfig, linearize
from linformer_kit.linearized.classes import LinearizedConfig
from tests.conftest import as_in_the_paper
from tests.families import FAMILIES, build, example

SIZES = FAMILIES["bert"].sizes
LENGTH = SIZES["max_position_embeddings"]
_OF_IMAGES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


@torch.no_grad()
@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
def test_saved_files_name_e_and_f_by_their_layer(sharing):
    model = as_in_the_paper(BertModel(BertConfig(**SIZES)), 7, sharing=sharing, layers=[0, 2])
    names = {name for name in model.state_dict() if "linformer" in name}
    layer = "encoder.layer.{}.attention.self.linformer.{}_projection"
    of_layers = {layer.format(number, each) for number in (0, 2) for each in ("key", "value")}
    assert names == ({"linformer.key_projection"} if sharing == "layerwise" else of_layers)


@pytest.mark.e2e
def test_one_of_transformers_too_saved_and_loaded_with_and_without_the_head(model, tmp_path):
    """But not as a generator of texts."""
    assert isinstance(model, BertForMaskedLM) and type(model).__name__ == "LinearBertForMaskedLM"
    assert isinstance(model.config, BertConfig) and isinstance(model.config, LinearizedConfig)
    assert model.config.model_type == "linearized" and model.training is False
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LinearBertForMaskedLM"]
    inputs = example(model, 31)
    whole, bare = AutoModelForMaskedLM.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)
    assert torch.equal(whole.eval()(**inputs).logits, model(**inputs).logits)
    assert torch.equal(bare.eval()(**inputs)[0], model.bert(**inputs)[0])
    other = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert torch.equal(other.eval().bert(**inputs)[0], model.bert(**inputs)[0]) and other.num_labels == 3
    assert AutoConfig.from_pretrained(tmp_path).linformer["projected_dim"] == 7
    with pytest.raises(ValueError, match="Unrecognized configuration class"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.e2e
def test_only_the_package_loads_it(model, tmp_path):
    """Imported by hand or by a pickle; the stock class would use full attention with weights of linear attention."""
    model.save_pretrained(tmp_path)
    stock = BertModel.from_pretrained(tmp_path)
    with pytest.raises(
        InputError, match="model: expected the linearised one that AutoModel loads, got BertSelfAttention"
    ):
        stock(input_ids=torch.full((1, 5), 3))
    configs = pickle.dumps([model.config, LinformerConfig(**SIZES, projected_dim=7)])
    code = f"""
import pickle, transformers
try:
    transformers.BertModel.from_pretrained({str(tmp_path)!r})
except ValueError as error:
    assert 'attn_implementation="linformer"` is not supported' in str(error), error
    models = [transformers.AutoModel.from_config(config) for config in pickle.loads({configs!r})]
    models.append(transformers.AutoModelForMaskedLM.from_pretrained({str(tmp_path)!r}))
    print(*(type(model).__name__ for model in models))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "LinearBertModel LinformerModel LinearBertForMaskedLM"


@torch.no_grad()
@pytest.mark.parametrize("kind", [EncoderDecoderModel, VisionEncoderDecoderModel, VisionTextDualEncoderModel])
@pytest.mark.e2e
def test_part_of_a_composite_model(kind, model, tmp_path):
    """Composite models build the configurations of their parts from the fields alone."""
    images, ids = as_in_the_paper(build(FAMILIES["vit"]), 7), example(model, 31)
    if kind is VisionTextDualEncoderModel:
        texts = as_in_the_paper(build(FAMILIES["bert"]), 7)  # with a pooler
        whole, inputs = kind(vision_model=images, text_model=texts), example(images, 0) | ids
        output = "logits_per_image"
    else:
        decoder = BertLMHeadModel(BertConfig(**SIZES, is_decoder=True, add_cross_attention=True))
        encoder = images if kind is VisionEncoderDecoderModel else model.bert
        whole = kind(encoder=encoder, decoder=decoder)
        inputs, output = example(encoder, 31) | {"decoder_input_ids": torch.full((2, 3), 5)}, "logits"
    whole.eval().save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path).eval()
    part = again.vision_model if kind is VisionTextDualEncoderModel else again.encoder
    assert type(part).__name__.startswith("Linear")
    assert torch.equal(again(**inputs)[output], whole(**inputs)[output])


def composite(kind: str) -> tuple[Any, str]:
    """A model whose class builds its parts by itself, and the name of one that is linear."""
    texts, images = ({key: SIZES[key] for key in sizes} | {"projection_dim": 17} for sizes in (SIZES, _OF_IMAGES))
    images |= {"image_size": 12, "patch_size": 6}
    if kind in ("clip", "siglip"):
        config = AutoConfig.for_model(kind, text_config=texts, vision_config=images)
        whole, name = AutoModel.from_config(config), "vision_model"
    elif kind == "llava":
        text, vision = AutoConfig.for_model("llama", **SIZES), AutoConfig.for_model("clip_vision_model", **images)
        config = AutoConfig.for_model("llava", text_config=text, vision_config=vision, image_token_index=3)
        whole, name = AutoModelForImageTextToText.from_config(config), "model.vision_tower"
    else:
        whole, name = BertForSequenceClassification(BertConfig(**SIZES)), "bert"
    as_in_the_paper(whole.get_submodule(name), 3)
    return whole.eval(), name


@pytest.mark.parametrize("kind", ["clip", "siglip", "llava", "classifier"])
def test_a_part_that_would_be_loaded_with_full_attention_is_not_saved(kind, tmp_path):
    whole, name = composite(kind)
    kinds = rf"{type(whole).__name__} builds again .* got Linear\w+ as {name}, .*: model.{name}.save_pretrained"
    for options in ({}, {"state_dict": whole.state_dict()}):
        with pytest.raises(InputError, match=rf"^model: expected linear parts that {kinds}\(FOLDER\)$"):
            whole.save_pretrained(tmp_path / "whole", **options)
    assert not (tmp_path / "whole").exists()
    whole.get_submodule(name).save_pretrained(tmp_path / "part")
    part = AutoModel.from_pretrained(tmp_path / "part").eval()
    setattr(whole.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], part)
    inputs = example(part, 31)
    assert type(part).__name__.startswith("Linear") and torch.isfinite(part(**inputs)[0]).all()


def test_a_part_in_the_configuration_of_the_whole_is_saved(tmp_path):
    """Where the class of the whole builds its parts by the Auto classes."""
    whole, name = composite("llava")
    tower = whole.get_submodule(name)
    whole.config.vision_config = tower.config
    whole.save_pretrained(tmp_path)
    again = type(whole).from_pretrained(tmp_path).eval().get_submodule(name)
    inputs = example(tower, 0)
    assert type(again) is type(tower) and torch.equal(again(**inputs)[0], tower(**inputs)[0])


@pytest.mark.parametrize("layers", [[0], [0, 1, 2, 2]])
def test_a_model_whose_layers_were_cut_or_multiplied_is_not_saved(layers, model, tmp_path):
    kept = [copy.deepcopy(model.bert.encoder.layer[layer]) for layer in layers]
    model.bert.encoder.layer = torch.nn.ModuleList(kept)
    with pytest.raises(InputError, match=rf"^model: expected 3 attention layers, as .*, got {len(layers)}$"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_contacts_of_tokens_are_not_made_of_slots():
    config = EsmConfig(**SIZES | {"pad_token_id": 1}, position_embedding_type="rotary")
    model, ids = as_in_the_paper(EsmForMaskedLM(config).eval(), 7), torch.full((1, 5), 3)
    for each in (model, model.esm):
        with pytest.raises(InputError, match=r"^predict_contacts: expected a model with full attention"):
            each.predict_contacts(ids, torch.ones_like(ids))
    assert not hasattr(as_in_the_paper(build(FAMILIES["bert"]), 7), "predict_contacts")


def test_every_matrix_learns(model):
    inputs = example(model, 31, padded=True)
    model.train()(**inputs).logits.square().sum().backward()
    for projection in model.projections():
        for matrix in projection.parameters():
            assert matrix.grad is not None and matrix.grad.abs().sum() > 0


@pytest.mark.parametrize("asked", ["eager", {"": "sdpa"}])
def test_no_other_attention_is_swallowed(asked, model, tmp_path):
    model.save_pretrained(tmp_path)
    setters = [model.set_attn_implementation, model.bert.set_attn_implementation]
    if isinstance(asked, str):
        setters.append(lambda asked: AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation=asked))
    for setter in setters:
        with pytest.raises(InputError, match="attn_implementation: expected linformer, as the model has, got"):
            setter(asked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: "seven", r"linformer: expected names and values in config.json, got 'seven'"),
        (lambda _: {"projected_dim": 7}, r"linformer\.base_model_type: expected "),
        (lambda _: {"slots": 7}, r"linformer\.slots: expected entries that `linearize` writes, got an unknown one"),
        ({"base_model_type": "nothing"}, r"linformer\.base_model_type: expected a model type of transformers, got"),
        ({"layers": ["layer.7"]}, r"linformer\.layers: expected names of modules of LinearBertModel, got 'layer"),
        ({"seq_len": 10**12}, r"linformer\.seq_len: expected .*16777216.*, got 1000000000000"),
        ({"projection": None}, r"linformer\.projection: expected .*linear.*, got None"),
        # Its outputs were other ones: nothing is read with `prefix` instead.
        ({"shorter_input": "stretch"}, r"shorter_input: expected prefix, or a projection with windows .*, got '"),
    ],
)
def test_a_configuration_that_is_none_is_rejected(change, message, model, tmp_path):
    """Under linformer in config.json."""
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    fields = config["linformer"]
    changed = fields | change if isinstance(change, dict) else change(fields)
    (tmp_path / "config.json").write_text(json.dumps({**config, "linformer": changed}))
    with pytest.raises(InputError, match=f"^{message}"):
        AutoModel.from_pretrained(tmp_path)


@torch.no_grad()
def test_a_class_of_which_nothing_was_built_yet_records_too(monkeypatch):
    """transformers learns what a class records when one is built, which a class that is changed is not."""
    monkeypatch.setattr(output_capturing, "_CAN_RECORD_REGISTRY", type(output_capturing._CAN_RECORD_REGISTRY)())
    monkeypatch.setattr(modeling_utils, "_CAN_RECORD_REGISTRY", output_capturing._CAN_RECORD_REGISTRY)
    model = as_in_the_paper(BertForMaskedLM(BertConfig(**SIZES)).eval(), 7)
    for shown in (
        model(**example(model, 31), output_attentions=True, output_hidden_states=True),
        model.bert(**example(model, 31), output_attentions=True, output_hidden_states=True),
    ):
        assert [tuple(mapping.shape) for mapping in shown.attentions] == [(2, 3, 31, 7)] * 3
        assert len(shown.hidden_states) == 4


@torch.no_grad()
def test_masks_of_every_form(model):
    ids = torch.randint(3, SIZES["vocab_size"], (3, 11))
    row = torch.arange(11)[None] < 7
    expected = model(input_ids=ids, attention_mask=row.long().expand(3, -1)).logits
    added = torch.zeros(1, 1, 1, 11).masked_fill(~row, torch.finfo(torch.float32).min)
    for mask in (row[:, None, None], row[:, None, None].expand(3, -1, -1, -1), added, added.clamp(min=-1e4)):
        found = model(input_ids=ids, attention_mask=mask).logits
        torch.testing.assert_close(found[:, :7], expected[:, :7], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(2, 1, 1, 11, dtype=torch.bool), r"expected \[3, 11\], got \[2, 1, 1, 11\]"),
        (
            torch.ones(3, 1, 11, 11, dtype=torch.bool),
            r"expected \[batch, seq_len\], 1 on real tokens, got \[3, 1, 11, 11\]",
        ),
        (torch.full((3, 1, 1, 11), -2.0), "expected bool, or floating point of 0 at real tokens"),
    ],
)
def test_masks_that_do_not_fit(mask, message, model):
    with pytest.raises(InputError, match=rf"^attention_mask: {message}"):
        model(input_ids=torch.full((3, 11), 3), attention_mask=mask)


def test_models_of_one_configuration_stay_apart():
    config = BertConfig(**SIZES)
    first, second = BertModel(config).eval(), BertModel(config).eval()
    as_in_the_paper(first, 7)
    inputs = example(second, 31)
    with torch.no_grad():
        assert second(**inputs)[0].shape == first(**inputs)[0].shape
    assert type(second.config) is BertConfig and config.model_type == "bert"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"projected_dim": 62}, r"projected_dim: expected 1 to 61 \(the longest sequence\), got 62"),
        (
            {"projected_dim": [[7, 7, 7], [5, 5, 5], [3, 4]]},
            "projected_dim: expected one number for each of 3 heads, got 2",
        ),
        ({"sharing": "all"}, "sharing: expected 'none', .*, got all"),
        ({"share": "none"}, "share: expected a setting, got an unknown one"),
        (
            {"shorter_input": "stretch"},
            "shorter_input: expected prefix, or a projection with windows .*, got 'stretch'",
        ),
        ({"max_position_embeddings": 50}, "max_position_embeddings: expected at least 61 for mode extend, got 50"),
        ({"max_position_embeddings": 99, "resize_mode": "repeat"}, "resize_mode: expected 'extend' or 'interp"),
    ],
)
def test_rejected_settings_change_nothing(options, message):
    model = build(FAMILIES["bert"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        as_in_the_paper(model, **options)
    assert type(model) is BertModel and model.config.model_type == "bert"
    assert model.config.max_position_embeddings == LENGTH
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.config._attn_implementation == "sdpa"


def test_the_signature_names_all_settings_with_their_defaults():
    shown = {name: each.default for name, each in inspect.signature(linearize).parameters.items()}
    model, adapter = shown.pop("model"), shown.pop("adapter")
    assert (model, adapter) == (inspect.Parameter.empty, None) and shown == vars(LinearizeSettings())


def test_what_is_linear_and_what_is_not_is_told_apart(model):
    with pytest.raises(InputError, match="expected one with full attention, got LinearBertForMaskedLM, which is"):
        as_in_the_paper(model)
    with pytest.raises(InputError, match="config: expected that of a linearised model"):
        type(model)(type(model.config)(**SIZES))


def test_the_probe_leaves_the_model_as_it_was():
    model = build(FAMILIES["bert"]).train()
    model.encoder.layer[1].eval()
    modes = [module.training for module in model.modules()]
    as_in_the_paper(model, 7)
    named = [module.training for name, module in model.named_modules() if "linformer" not in name]
    assert named == modes


@pytest.mark.parametrize("name", ["bert", "roberta"])
@torch.no_grad()
def test_longer_later(name, tmp_path):
    """Short texts give what they gave, bit for bit."""
    for projection, shorter_input in (("linear", "prefix"), ("mean_pool", "stretch")):
        torch.manual_seed(0)
        model = as_in_the_paper(build(FAMILIES[name]), 7, projection=projection)
        assert model.config.linformer["shorter_input"] == shorter_input
        for matrix in (matrix for each in model.projections() for matrix in each.parameters()):
            torch.nn.init.normal_(matrix, std=0.2)
        inputs = example(model, 43)
        before = model(**inputs)[0]
        model.resize_sequence_length(122)
        after = model(**inputs)[0]
        assert torch.equal(before, after)
        model.save_pretrained(tmp_path / shorter_input)
        loaded = AutoModel.from_pretrained(tmp_path / shorter_input).eval()
        long = example(model, 122)
        assert torch.equal(loaded(**long)[0], model(**long)[0])


def test_images_have_one_size():
    model = as_in_the_paper(build(FAMILIES["vit"]), 7)
    with pytest.raises(InputError, match="seq_len: expected none for LinearViTModel, whose inputs have a fixed size"):
        model.resize_sequence_length(99)
