"""A BERT or RoBERTa linearised in place, as a model of this package: equal outputs."""

from __future__ import annotations

import pytest
import torch
import transformers

from linformer_kit import InputError, linearize, load_bert_checkpoint, load_roberta_checkpoint
from linformer_kit.commands.cli import main
from tests.interop.checkpoints.test_encoders import source

LOADERS = {"Bert": load_bert_checkpoint, "Roberta": load_roberta_checkpoint}


def linear(class_name: str, folder, **options):
    """A saved one whose E and F are no longer what they were at the start."""
    source(class_name, folder / "stock")
    model = linearize(getattr(transformers, class_name).from_pretrained(folder / "stock").eval(), **options)
    torch.manual_seed(1)
    with torch.no_grad():
        for projection in model.projections():
            for matrix in projection.parameters():
                matrix.add_(torch.randn_like(matrix), alpha=0.1)
    model.save_pretrained(folder / "linear")
    return model


def batch(vocabulary: int = 53) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    ids = torch.randint(5, vocabulary, (3, 29))
    mask = torch.ones_like(ids)
    mask[1, 11:] = 0
    ids[1, 11:] = 1  # padding of both
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(
    "options",
    [
        {"sharing": "headwise"},
        {"sharing": "none"},
        {"sharing": "key_value", "shorter_input": "prefix"},
        {"sharing": "layerwise"},
        {"projection": "mean_pool"},
        {"projection": "random", "sharing": "layerwise"},
        {"projection": "conv"},
        {"projection": "dynamic", "sharing": "none"},
        {"projection": "dynamic", "sharing": "headwise", "sliding_window": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", LOADERS)
@torch.no_grad()
def test_outputs_are_the_same(kind, options, tmp_path):
    theirs = linear(f"{kind}Model", tmp_path, projected_dim=7, **options).double()
    ours = LOADERS[kind](tmp_path / "linear").double()
    assert ours.projection_matrix_count() == theirs.projection_matrix_count()
    inputs = batch()
    real = inputs["attention_mask"].bool()
    error = 1e-6 if options.get("projection") == "dynamic" else 1e-10  # W_K·W_P is rounded to float32
    torch.testing.assert_close(
        ours(**inputs).last_hidden_state[real], theirs(**inputs).last_hidden_state[real], rtol=error, atol=error
    )


def test_a_dynamic_projection_of_all_layers_depends_on_each_map(tmp_path):
    linear("RobertaModel", tmp_path, projected_dim=7, projection="dynamic", sharing="layerwise")
    with pytest.raises(
        InputError, match=r"expected a dynamic projection with its own W_P in each layer .* got sharing layerwise"
    ):
        load_roberta_checkpoint(tmp_path / "linear")


@torch.no_grad()
def test_by_layer_and_head(tmp_path):
    dims = [[3, 5, 7], [2, 4, 4]]
    for sharing in ("headwise", "layerwise"):
        folder = tmp_path / sharing
        theirs = linear("RobertaForMaskedLM", folder, projected_dim=dims, sharing=sharing).double()
        ours = load_roberta_checkpoint(folder / "linear").double()
        assert ours.config.projected_dim == dims
        inputs = batch()
        real = inputs["attention_mask"].bool()
        torch.testing.assert_close(ours(**inputs).logits[real], theirs(**inputs).logits[real], rtol=1e-10, atol=1e-10)


def test_by_command(tmp_path, capsys):
    linear("BertForSequenceClassification", tmp_path, projected_dim=7)
    main(["convert", str(tmp_path / "linear"), str(tmp_path / "ours")])
    out = capsys.readouterr().out
    assert "LinformerForSequenceClassification" in out and "k 7" in out and "untrained" not in out
    with pytest.raises(SystemExit):
        main(["convert", str(tmp_path / "linear"), str(tmp_path / "others"), "--projected_dim", "5"])
    assert "projected_dim: expected none for a model that is linear already, got 5" in capsys.readouterr().err


def test_a_longer_one(tmp_path):
    linear("BertModel", tmp_path, projected_dim=7, shorter_input="prefix")
    ours = load_bert_checkpoint(tmp_path / "linear", max_position_embeddings=74)
    short = load_bert_checkpoint(tmp_path / "linear")
    inputs = batch()
    assert torch.equal(ours(**inputs).last_hidden_state, short(**inputs).last_hidden_state)


def test_other_kinds_have_no_place(tmp_path):
    config = transformers.ElectraConfig(
        vocab_size=53, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=23
    )
    linearize(transformers.ElectraModel(config), 5).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="expected a model of type bert, got electra"):
        load_bert_checkpoint(tmp_path)
