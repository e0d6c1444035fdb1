"""Official checkpoints against an oracle of the official forward pass, in float64."""

from __future__ import annotations

import argparse
import re

import pytest
import torch

from linformer_kit import InputError, LinformerForMaskedLM, LinformerModel, load_fairseq_checkpoint
from tests.reference import fairseq_linformer as official

MATRICES = {"headwise": 6, "key_value": 3, "layerwise": 1, "roberta": 0}


def ids(length: int) -> torch.Tensor:
    return torch.randint(5, official.VOCAB, (2, length))


def saved(tmp_path, content) -> str:
    path = tmp_path / "checkpoint.pt"
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize("sharing", official.SHARINGS)
@pytest.mark.parametrize("old", [False, True])
def test_gives_what_the_official_code_gives(sharing, old, tmp_path):
    content = official.checkpoint(sharing)
    path = saved(tmp_path, official.old_layout(content) if old else content)
    model = load_fairseq_checkpoint(path).double()
    assert type(model) is LinformerForMaskedLM
    assert model.projection_matrix_count() == MATRICES[sharing]
    weights = {name: tensor.double() for name, tensor in content["model"].items()}
    for length in (official.N, 13, 1):
        tokens = ids(length)
        torch.testing.assert_close(
            model(tokens).logits, official.masked_lm_logits(weights, tokens), rtol=1e-10, atol=1e-10
        )
    config = model.config
    assert (config.max_position_embeddings, config.position_offset, config.bias_order) == (31, 2, "after_projection")
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.classifier_dropout) == (
        0.2,
        0.1,
        0.3,
    )
    model.float().save_pretrained(tmp_path / "ours")
    again = LinformerForMaskedLM.from_pretrained(tmp_path / "ours")
    assert torch.equal(again(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("form", ["untied", "without head", "relu", "gelu_accurate", "gelu_fast"])
def test_other_heads_and_activations(form, tmp_path):
    """A head with its own matrix stays untied; a file without head is a base model."""
    content, tokens, activation = official.checkpoint("headwise"), ids(29), {}
    if form == "untied":
        content["model"]["encoder.lm_head.weight"] = torch.randn(official.VOCAB, official.WIDTH)
    elif form == "without head":
        drop(content, "lm_head")
    else:
        content["args"].activation_fn = form
        activation = {"activation": form}
    model = load_fairseq_checkpoint(saved(tmp_path, content))
    assert model.config.tie_word_embeddings == (form != "untied")
    assert type(model) is (LinformerModel if form == "without head" else LinformerForMaskedLM)
    expected = official.features if form == "without head" else official.masked_lm_logits
    torch.testing.assert_close(model(tokens)[0], expected(content["model"], tokens, **activation), rtol=1e-4, atol=1e-4)


def test_heads_that_are_left_out_are_named(tmp_path, caplog):
    path = saved(tmp_path, official.checkpoint("headwise", classification_head="imdb"))
    load_fairseq_checkpoint(path)
    heads = "classification_heads.imdb.dense, classification_heads.imdb.out_proj"
    assert f"{path}: not in the result: {heads}" in caplog.text


def test_newer_files_and_files_that_say_less(tmp_path):
    content = official.checkpoint("key_value")
    arguments = vars(content.pop("args"))
    path = saved(tmp_path, {**content, "cfg": {"model": argparse.Namespace(**arguments)}})
    assert load_fairseq_checkpoint(path).config.num_attention_heads == official.HEADS
    path = saved(tmp_path, content)
    with pytest.raises(InputError, match="KeyError: 'cfg'"):
        load_fairseq_checkpoint(path)


class Harmful:
    """An object that no pickle may contain."""

    def __reduce__(self):
        return (print, ("this must never run",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {"model": Harmful()}, ": its pickle is broken or holds disallowed objects"),
        (lambda c: {"args": c["args"]}, "got another file: KeyError: 'model'"),
        (
            lambda c: drop(c, "layers.1.self_attn.compress_v"),
            'Missing key(s) in state_dict: "linformer.encoder.layers.1.self_attn.projection.value',
        ),
        (lambda c: add(c, f"{official.PREFIX}embed_tokens.weight"), "not enough values to unpack (expected 2, got 1)"),
        (
            lambda c: add(c, f"{official.PREFIX}layers.0.fc2.bias", torch.full((official.WIDTH,), torch.inf)),
            "got NaN or infinite numbers in linformer.encoder.layers.0.fc2.bias",
        ),
        (lambda c: add(c, "encoder.extra.weight"), 'Unexpected key(s) in state_dict: "encoder.extra.weight"'),
    ],
)
def test_files_rejected(change, message, tmp_path, capsys):
    path = saved(tmp_path, change(official.checkpoint("headwise")))
    with pytest.raises(InputError, match=re.escape(message)):
        load_fairseq_checkpoint(path)
    assert capsys.readouterr().out == ""


def drop(content, part):
    content["model"] = {name: tensor for name, tensor in content["model"].items() if part not in name}
    return content


def add(content, name, tensor=None):
    content["model"][name] = torch.ones(3) if tensor is None else tensor
    return content


@pytest.mark.parametrize("content", [b"", b"no pickle at all", b"PK\x03\x04 half a zip", b"\x80\x02a."])
def test_files_that_are_no_checkpoint(content, tmp_path):
    (tmp_path / "broken.pt").write_bytes(content)
    with pytest.raises(InputError, match=r"broken\.pt: expected a fairseq checkpoint"):
        load_fairseq_checkpoint(tmp_path / "broken.pt")
    with pytest.raises(InputError, match=r"none\.pt: expected a fairseq checkpoint .*No such file"):
        load_fairseq_checkpoint(tmp_path / "none.pt")
