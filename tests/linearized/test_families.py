"""Every family of encoders: k = n leaves outputs unchanged, and only unsupported models are rejected."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from transformers import AutoModel

from linformer_kit import InputError
from linformer_kit.linearized.layers import attention_layers
from linformer_kit.linearized.linearize import linearize
from linformer_kit.models.base import longest_input, set_positions
from tests.conftest import as_in_the_paper
from tests.families import FAMILIES, build, example

OWN_PADDING = ("roberta", "xlm-roberta")  # count positions by the padding token
TEXT = [name for name, family in FAMILIES.items() if "vocab_size" in family.sizes]


@pytest.fixture(params=FAMILIES)
def family(request):
    torch.manual_seed(0)
    return FAMILIES[request.param]


@torch.no_grad()
def difference(model, linear, inputs) -> float:
    """Largest difference between the last hidden states of two models at real tokens."""
    found = (linear(**inputs)[0] - model(**inputs)[0]).abs()
    return (found[inputs["attention_mask"].bool()] if "attention_mask" in inputs else found).max().item()


@pytest.mark.parametrize("projection", ["linear", "mean_pool"])
def test_nothing_changes_with_as_many_slots_as_tokens(family, projection):
    """E = F = 1 at full length, mean pooling with padding; in float64, whose rounding is far below everything else."""
    model = build(family).double()
    length = longest_input(model) or attention_layers(model)[0].keys
    linear = linearize(copy.deepcopy(model), length, projection=projection, sliding_window=0, global_tokens=0)
    matrices = [matrix for made in linear.projections() for matrix in made.parameters()]
    for matrix in matrices:
        matrix.data.copy_(torch.eye(length))
    inputs = example(model, length) if matrices else example(model, 2 * length // 3, padded=True)
    assert bool(matrices) == (projection == "linear")
    largest = model(**inputs)[0].abs().max().item()  # without LayerNorm, in MobileBERT, it grows with the layers
    assert difference(model, linear, inputs) < 1e-11 * max(10, largest)


def test_names_stay_matrices_are_added_and_all_is_loaded_again(family, tmp_path):
    model = build(family).double()
    before = {name: tensor.shape for name, tensor in model.named_parameters()}
    layers = [layer for layer in attention_layers(model) if not layer.local]
    linear = as_in_the_paper(copy.deepcopy(model), 7)
    after = {name: tensor.shape for name, tensor in linear.named_parameters()}
    assert {name: after.pop(name) for name in before} == before
    assert len(after) == 2 * len(layers) and linear.projection_matrix_count() == len(after)
    assert {tuple(shape) for shape in after.values()} == {(7, linear.config.linformer["seq_len"])}
    inputs = example(model, 43)
    assert difference(model, linear, inputs) > 1e-6, "else attention was not replaced"
    linear.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, trust_remote_code=False, use_safetensors=True).eval()
    assert difference(linear, loaded, inputs) < 1e-10


@pytest.mark.parametrize("name", TEXT)
def test_padding_reaches_nothing(name):
    """With few slots too, and for any content of the padding."""
    torch.manual_seed(0)
    linear = as_in_the_paper(build(FAMILIES[name]), 5)
    inputs = example(linear, 31, padded=True)
    real = int(inputs["attention_mask"][1].sum())
    with torch.no_grad():
        both = linear(**inputs)[0][1, :real]
        alone = linear(input_ids=inputs["input_ids"][1:, :real])[0][0]
        others = inputs["input_ids"].clone()
        others[1, real:] = 1 if name in OWN_PADDING else 7
        changed = linear(**{**inputs, "input_ids": others})[0][1, :real]
    torch.testing.assert_close(both, alone, atol=1e-4, rtol=1e-4)
    if name != "mobilebert":  # whose embeddings look at the next token, whatever it is
        assert torch.equal(changed, both)


OPTIONS = [
    ("bert", {"sharing": "none"}),
    ("modernbert", {"sharing": "key_value"}),
    ("vit", {"sharing": "layerwise"}),
    *(("bert", {"projection": name}) for name in ("max_pool", "conv", "random", "dynamic")),
    ("roberta", {"sliding_window": 5}),
    ("bert", {"layers": [1]}),  # the others keep full attention
]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
@torch.no_grad()
def test_copied_and_saved_it_gives_the_same(name, options, tmp_path):
    torch.manual_seed(0)
    linear = as_in_the_paper(build(FAMILIES[name]), 5, **options)
    layers, heads = len(linear.config.linformer["layers"]), 3
    counts = {"none": 2 * layers * heads, "key_value": layers, "layerwise": 1}
    if "sharing" in options:
        assert linear.projection_matrix_count() == counts[options["sharing"]]
    for parameter in (p for projection in linear.projections() for p in projection.parameters()):
        torch.nn.init.normal_(parameter, std=0.2)
    inputs = example(linear, 31, padded=name != "vit")
    before = linear(**inputs)[0]
    assert torch.equal(copy.deepcopy(linear)(**inputs)[0], before)
    linear.save_pretrained(tmp_path)
    assert torch.equal(AutoModel.from_pretrained(tmp_path).eval()(**inputs)[0], before)


_SIZES = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 31}
_PART = {"hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
_T5 = {"d_model": 24, "d_ff": 24, "num_layers": 1, "num_heads": 2, "vocab_size": 31}
_BART = {"d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 31}
_BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
REJECTED = {
    "GPT2Model": ("GPT2Config", {"n_embd": 24, "n_layer": 1, "n_head": 2, "vocab_size": 31}, "causal attention"),
    "BartModel": ("BartConfig", _BART, "causal attention"),
    "T5EncoderModel": ("T5Config", _T5, "without position_bias"),
    "CLIPModel": (
        "CLIPConfig",
        {"text_config": _PART, "vision_config": _PART},
        "which has several: text_config, vision_config",
    ),
    "BertLMHeadModel": ("BertConfig", {"is_decoder": True, **_SIZES}, "causal attention"),
    "BertModel": ("BertConfig", _SIZES, "one with weights, got BertModel on the meta device"),
    "MPNetModel": ("MPNetConfig", _SIZES, "attention interface (that of BERT, RoBERTa,"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected_with_the_reason(name):
    config, sizes, reason = REJECTED[name]
    with torch.device("meta" if "meta" in reason else "cpu"):
        model = getattr(transformers, name)(getattr(transformers, config)(**sizes))
    kind, names, training = type(model), list(model.state_dict()), model.training
    with pytest.raises(InputError, match=r"^model: expected .*, got") as error:
        as_in_the_paper(model, 4)
    assert reason in str(error.value)
    assert (type(model), list(model.state_dict()), model.training) == (kind, names, training)


TINY = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "head_dim": 8}
TINY |= {"num_hidden_layers": 1, "num_key_value_heads": 1, "max_position_embeddings": 31, "pad_token_id": 0}


@pytest.mark.parametrize("name", ["bert", "modernbert", "vit"])
def test_encoders_are_accepted_whatever_they_declare(name):
    """In bfloat16 outputs of a small encoder with small weights are equal for texts that differ in one token."""
    sizes = FAMILIES[name].sizes | {"hidden_size": 8, "num_attention_heads": 2, "initializer_range": 0.001}
    model = build(FAMILIES[name]._replace(sizes=sizes)).bfloat16()
    for module in model.modules():
        module.__dict__.pop("is_causal", None)
    assert as_in_the_paper(model, 4).projection_matrix_count()


@torch.no_grad()
def test_a_decoder_that_is_configured_as_encoder():
    """EmbeddingGemma: its mask is made of a causal one, and some layers have a window."""
    layers = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "num_hidden_layers": 2,
    }
    config = transformers.Gemma3TextConfig(**TINY | layers | {"use_bidirectional_attention": True})
    model = AutoModel.from_config(config).double().eval()
    linear = linearize(copy.deepcopy(model), 31)
    assert difference(model, linear, example(model, 31, padded=True)) < 1e-10


def test_positions_that_are_not_known_here():
    sizes = {**FAMILIES["bert"].sizes, "max_position_embeddings": 16}
    model = transformers.SiglipTextModel(transformers.SiglipTextConfig(**sizes))
    with pytest.raises(
        InputError, match="max_position_embeddings: expected none, since SiglipTextModel has no plain table"
    ):
        as_in_the_paper(model, 4, max_position_embeddings=32)
    assert as_in_the_paper(model, 4).config.linformer["seq_len"] == 16


def test_positions_that_begin_after_an_offset():
    """Without a padding index, whose rows are the unused ones of others."""
    sizes = {**FAMILIES["bert"].sizes, "max_position_embeddings": 16, "num_landmarks": 4, "segment_means_seq_len": 16}
    torch.manual_seed(0)
    model = transformers.NystromformerModel(transformers.NystromformerConfig(**sizes)).eval()
    embeddings, ids = model.embeddings, torch.full((1, 16), 5)
    assert longest_input(model) == longest_input(copy.deepcopy(model).to("meta")) == 16
    before = embeddings(ids)
    set_positions(model, 24, "extend")
    assert longest_input(model) == model.config.max_position_embeddings == 24
    assert torch.equal(embeddings(ids), before)
    assert embeddings(torch.full((1, 24), 5)).shape[1] == 24
