"""RoBERTa and BERT: every weight kept, and with full attention the outputs of the source."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from transformers import BertConfig, RobertaConfig

from linformer_kit import InputError, LinformerForMaskedLM, load_bert_checkpoint, load_roberta_checkpoint
from tests.conftest import SHARINGS, randomise

SIZES = {
    "vocab_size": 101,
    "hidden_size": 33,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 29,
}
HEADS = ["MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering"]
CLASSES = [f"{family}For{head}" for family in ("Roberta", "Bert") for head in HEADS]
CLASSES += ["RobertaModel", "BertModel", "BertForPreTraining", "XLMRobertaForMaskedLM", "CamembertForMaskedLM"]


def source(class_name: str, folder, **fields: object):
    """A model of transformers with random weights, saved; and our loader for it."""
    made = {**SIZES, "num_labels": 2 if "Question" in class_name else 3, "layer_norm_eps": 1e-7, **fields}
    model_class = getattr(transformers, class_name)
    if class_name.startswith("Bert"):
        config = BertConfig(max_position_embeddings=37, **{"hidden_act": "gelu_new", **made})
    else:
        config = model_class.config_class(max_position_embeddings=39, **{"type_vocab_size": 1, **made})
    model = randomise(model_class(config)).eval()
    model.save_pretrained(folder)
    return model, load_bert_checkpoint if class_name.startswith("Bert") else load_roberta_checkpoint


@pytest.mark.parametrize("class_name", CLASSES)
def test_with_full_attention_it_is_the_source(class_name, tmp_path):
    theirs, load = source(class_name, tmp_path)
    ours = load(tmp_path, attention="full")
    ids, mask = torch.randint(5, 101, (3, 37)), torch.ones(3, 37, dtype=torch.long)
    mask[0, 23:] = 0
    ids = ids.masked_fill(mask == 0, theirs.config.pad_token_id)
    arguments = {"input_ids": ids, "attention_mask": mask}
    if theirs.config.type_vocab_size > 1:
        arguments["token_type_ids"] = torch.randint(2, (3, 37))
    with torch.no_grad():
        expected, got = theirs(**arguments), ours(**arguments)
    if class_name == "BertForPreTraining":
        pairs = [(got.logits, expected.prediction_logits)]
    else:
        pairs = list(zip(got.to_tuple(), expected.to_tuple(), strict=True))
    for mine, other in pairs:
        if mine.shape[:2] == mask.shape:
            mine, other = mine[mask == 1], other[mask == 1]
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("class_name", CLASSES)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_weight_is_kept_and_only_e_and_f_are_new(class_name, sharing, tmp_path):
    theirs, load = source(class_name, tmp_path)
    ours = load(tmp_path, projected_dim=7, sharing=sharing)
    full = load(tmp_path, attention="full").state_dict()
    kept = {name: tensor for name, tensor in ours.state_dict().items() if ".projection." not in name}
    assert kept.keys() == full.keys()
    assert all(torch.equal(tensor, full[name]) for name, tensor in kept.items())
    left_out = 0
    if class_name == "BertForPreTraining":  # the pooler, and the two answers of the next sentence
        left_out = 33 * 33 + 33 + 2 * 33 + 2
    assert full_size(theirs) - left_out == sum(
        parameter.numel() for parameter in load(tmp_path, attention="full").parameters()
    )
    assert ours.projection_matrix_count() == {"none": 12, "headwise": 4, "key_value": 2, "layerwise": 1}[sharing]
    config = ours.config
    assert (config.max_position_embeddings, config.layer_norm_eps) == (37, 1e-7)
    assert config.hidden_act == theirs.config.hidden_act
    assert config.position_offset == (0 if class_name.startswith("Bert") else 2)
    assert config.id2label == theirs.config.id2label


def full_size(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_untied_embeddings_stay_untied(tmp_path):
    theirs, load = source("RobertaForMaskedLM", tmp_path, tie_word_embeddings=False)
    ours = load(tmp_path, projected_dim=7)
    assert isinstance(ours, LinformerForMaskedLM) and not ours.config.tie_word_embeddings
    assert torch.equal(ours.lm_head.decoder.weight, theirs.lm_head.decoder.weight)
    assert not torch.equal(ours.lm_head.decoder.weight, ours.linformer.embeddings.word_embeddings.weight)


def test_k_is_at_most_n_where_nobody_chose_it(tmp_path):
    _, load = source("BertModel", tmp_path)
    assert load(tmp_path).config.projected_dim == 37


@pytest.mark.parametrize(
    ("class_name", "fields", "message"),
    [
        ("BertModel", {"projected_dim": 38}, "projected_dim: expected 1 to 37 (max_position_embeddings), got 38"),
        ("BertModel", {"hidden_sizes": 3}, "hidden_sizes: expected a field of LinformerConfig, got an unknown one"),
        ("BertModel", {"hidden_size": 11, "num_attention_heads": 1}, "of [101, 11], got [101, 33]"),
        ("RobertaForMaskedLM", {"attention": "full"}, "expected hidden_act gelu in a masked language model, got relu"),
        ("BertForNextSentencePrediction", {}, "expected an architecture ending in ForPreTraining, ForMaskedLM"),
    ],
)
def test_refused(class_name, fields, message, tmp_path):
    _, load = source(class_name, tmp_path, **({"hidden_act": "relu"} if "relu" in message else {}))
    with pytest.raises(InputError, match=re.escape(message)):
        load(tmp_path, **fields)


def test_other_models_refused(tmp_path):
    source("BertModel", tmp_path)
    with pytest.raises(InputError, match="expected a model of type roberta, xlm-roberta, camembert, got bert"):
        load_roberta_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"expected config\.json of a pretrained encoder, got none"):
        load_bert_checkpoint(tmp_path.parent)
    decoder = RobertaConfig(**SIZES, is_decoder=True, architectures=["RobertaForMaskedLM"])
    decoder.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="expected an encoder, got a decoder"):
        load_roberta_checkpoint(tmp_path)


def test_half_a_model_refused(tmp_path):
    model, load = source("BertModel", tmp_path)
    state = {name: tensor for name, tensor in model.state_dict().items() if "layer.1.output" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(InputError, match=r"expected all weights of BertModel, got none for encoder\.layer\.1\.output"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(InputError, match="source: expected a pretrained encoder, got"):
        load(tmp_path)
