"""The README.md of saved models: how to load them, and what they were made from."""

from __future__ import annotations

import pytest
from transformers import AutoModel, BertConfig, BertForMaskedLM, BertModel, ModernBertConfig, ModernBertModel

from linformer_kit import LinformerConfig, LinformerForQuestionAnswering, LinformerModel, linearize
from linformer_kit.report.card import card_of
from tests.conftest import SIZES

BERT = {name: size for name, size in SIZES.items() if name != "projected_dim"}


@pytest.mark.parametrize(
    ("make", "auto_class"),
    [
        (lambda: LinformerForQuestionAnswering(LinformerConfig(**SIZES)), "AutoModelForQuestionAnswering"),
        (lambda: LinformerModel(LinformerConfig(**SIZES)), "AutoModel"),
        (lambda: linearize(BertForMaskedLM(BertConfig(**BERT)), 7), "AutoModelForMaskedLM"),
    ],
)
def test_how_to_load_it(make, auto_class, tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert f"# {type(model).__name__}\n" in text and "up to 37 tokens.\n" in text
    assert "import linformer_kit " in text and f'model = {auto_class}.from_pretrained("FOLDER")' in text


@pytest.mark.parametrize(
    ("make", "attention"),
    [
        (lambda: LinformerModel(LinformerConfig(**SIZES, attention="full")), "full attention"),
        (lambda: LinformerModel(LinformerConfig(**SIZES)), "linear-time attention (Linformer)"),
        (lambda: linearize(BertModel(BertConfig(**BERT)), 7), "linear-time attention (Linformer)"),
        (lambda: linearize(BertModel(BertConfig(**BERT)), 7, layers=[]), "full attention"),
        (lambda: BertModel(BertConfig(**BERT)), "full attention"),
        (lambda: modern_bert(1), "full attention"),
        (lambda: modern_bert(2), "sliding windows and, in some layers, full attention"),
    ],
)
def test_what_its_attention_is(make, attention):
    text = card_of(make(), 37)
    assert f" with {attention} for inputs of up to 37 tokens" in text
    assert ("- linformer" in text) == attention.startswith("linear-time")


def modern_bert(layers: int) -> ModernBertModel:
    sizes = {**BERT, "hidden_size": 36, "num_hidden_layers": layers, "vocab_size": 53}
    tokens = {f"{name}_token_id": 1 for name in ("bos", "cls", "eos", "sep", "pad")}
    return ModernBertModel(ModernBertConfig(**sizes, **tokens))


def test_what_it_was_made_from(tmp_path):
    BertModel(BertConfig(**BERT)).save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "README.md").write_text("---\nlicense: mit\n---\n")
    linearize(AutoModel.from_pretrained(tmp_path / "base"), 7).save_pretrained(tmp_path / "linear")
    text = (tmp_path / "linear" / "README.md").read_text()
    assert "license: mit\n" in text and ", made from base.\n" in text
    assert str(tmp_path) not in text and "base_model" not in text


def test_one_that_is_there_stays(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    model = LinformerModel(LinformerConfig(**SIZES))
    model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "other", is_main_process=False)
    assert (tmp_path / "README.md").read_text() == "mine" and not (tmp_path / "other" / "README.md").exists()
