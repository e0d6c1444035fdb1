"""`linformer linearize` and `linformer resize`, from a folder to a folder that all other commands read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from linformer_cli.cli import main
from linformer_kit import LinformerConfig, LinformerForCausalLM, LinformerForMaskedLM, LinformerModel
from linformer_kit.files.manifest import damage
from linformer_kit.linearized import adapter
from linformer_kit.linearized.adapter import base_fingerprint
from tests.conftest import SIZES, encoded_lengths, fail, fail_last_line, pad_always, randomise, save_tokenizer

BERT = {name: size for name, size in SIZES.items() if name != "projected_dim"}
OWN = SIZES | {"vocab_size": 53, "sliding_window": 6}


def said(capsys, *words: object) -> str:
    """What a command prints."""
    capsys.readouterr()
    main(list(map(str, words)))
    return capsys.readouterr().out


def source(class_name: str, folder: Path, **fields: object) -> PreTrainedModel:
    """A model of transformers with random weights, saved."""
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**BERT, num_labels=3, **fields)
    model = randomise(model_class(config)).eval()
    model.save_pretrained(folder)
    return model


def test_a_model_of_this_package_made_longer(tmp_path, capsys):
    """In mode extend texts of the old length keep their outputs; the tokenizer and the files belong to the new one."""
    for kind in (LinformerForMaskedLM, LinformerForCausalLM, LinformerModel):
        own = {"causal": True, "projection": "mean_pool"} if kind is LinformerForCausalLM else {}
        short = randomise(kind(LinformerConfig(**OWN, **own))).eval()
        short.save_pretrained(tmp_path / f"short-{kind.__name__}")
        save_tokenizer(tmp_path / f"short-{kind.__name__}")
        pad_always(tmp_path / f"short-{kind.__name__}", 11)
        left = AutoTokenizer.from_pretrained(tmp_path / f"short-{kind.__name__}", padding_side="left")
        left.save_pretrained(tmp_path / f"short-{kind.__name__}")
        longer = tmp_path / f"longer-{kind.__name__}"
        places = (tmp_path / f"short-{kind.__name__}", longer)
        assert f"{kind.__name__}, " in (out := said(capsys, "resize", *places, "--max_position_embeddings", 74))
        assert "n 74, k " in out and "untrained" not in out
        model, ids = kind.from_pretrained(longer).eval(), torch.randint(5, 53, (2, 31))
        assert torch.equal(model(ids)[0], short(ids)[0]) and model(torch.full((1, 74), 5))[0].isfinite().all()
        tokenizer = AutoTokenizer.from_pretrained(longer)
        assert tokenizer.model_max_length == 74 and tokenizer("w7 w9")["input_ids"] == [7, 9]
        assert tokenizer.padding_side == ("left" if kind is LinformerForCausalLM else "right")
        assert encoded_lengths(longer, "w7", "w7 " * 99) == [1, 74]
        assert damage(longer) is None and (longer / "manifest.json").exists()
    assert len([*tmp_path.iterdir()]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "OUT", 99], "model: expected a pretrained encoder, got nowhere, which is no folder here; "),
        (["LINEAR", "LINEAR", 99], "out: expected a new or empty folder, got"),
        (["THEIRS", "OUT", 99], "model: expected a model of this package, or a linear encoder (`linformer linearize` "),
        (["LINEAR", "OUT", 5], "max_position_embeddings: expected at least 37 for mode extend, got 5"),
        (["LINEAR", "OUT", 0], "max_position_embeddings: expected greater than or equal to 1, got 0"),
        (["BROKEN", "OUT", 99], "tokenizer: expected a tokenizer, got"),
        (["LARGE", "OUT", 99], "tokenizer: expected at most 53 tokens, got 54"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, message, tmp_path, capsys):
    source("BertForMaskedLM", tmp_path / "THEIRS")
    for name in ("LINEAR", "BROKEN", "LARGE"):
        LinformerModel(LinformerConfig(**OWN)).save_pretrained(tmp_path / name)
    (tmp_path / "BROKEN" / "tokenizer.json").write_text("{")
    save_tokenizer(tmp_path / "LARGE", 54)
    places = [str(tmp_path / name) if name.isupper() else name for name in arguments[:2]]
    error = fail_last_line(capsys, "resize", *places, "--max_position_embeddings", arguments[2])
    assert message in error.splitlines()[-1] and not (tmp_path / "OUT").exists()


def test_linearize(tmp_path, capsys):
    """The model's own class, its head, its tokenizer and the files of sentence-transformers are kept."""
    source("BertForMaskedLM", tmp_path / "theirs")
    save_tokenizer(tmp_path / "theirs")
    (tmp_path / "theirs" / "modules.json").write_text('[{"path": ""}]')
    options = ["--projected_dim", "[3, 5]", "--sharing", "layerwise", "--max_position_embeddings", "74"]
    out = said(capsys, "linearize", tmp_path / "theirs", tmp_path / "ours", *options)
    assert "LinearBertForMaskedLM" in out
    assert "n 74, k [3, 5], sharing layerwise, sliding_window 128, global_tokens 1" in out
    assert "New: slots (mean_pool): run `linformer distill` to bring the outputs closer to those of the source." in out
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "ours")
    assert type(model).__name__ == "LinearBertForMaskedLM"
    assert model(torch.full((1, 74), 5)).logits.isfinite().all()
    assert AutoTokenizer.from_pretrained(tmp_path / "ours").model_max_length == 74
    assert (tmp_path / "ours" / "modules.json").exists() and damage(tmp_path / "ours") is None


def test_how_texts_are_embedded_is_kept(tmp_path, capsys, caplog):
    """The limit of tokens too, unless the length is new; made longer, texts of the old length keep their outputs."""
    source("BertModel", tmp_path / "theirs")
    save_tokenizer(tmp_path / "theirs")
    encoder = Transformer(str(tmp_path / "theirs"), max_seq_length=13)
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), "cls"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu", prompts={"query": "w9 "}).save(str(tmp_path / "theirs"))
    longer = ["--max_position_embeddings", "74"]
    said(capsys, "linearize", tmp_path / "theirs", tmp_path / "same", "--projected_dim", "7")
    said(capsys, "linearize", tmp_path / "theirs", tmp_path / "new", *longer)
    out = said(capsys, "resize", tmp_path / "same", tmp_path / "longer", *longer)
    assert "n 74, k 7" in out and "untrained" not in out and "not in the result" not in caplog.text
    for name, limit in (("same", 13), ("new", 74), ("longer", 74)):
        loaded = SentenceTransformer(str(tmp_path / name), device="cpu", local_files_only=True)
        assert (loaded.max_seq_length, loaded.prompts["query"], loaded[1].pooling_mode) == (limit, "w9 ", "cls")
        assert damage(tmp_path / name) is None
    short, long = (AutoModel.from_pretrained(tmp_path / name).eval() for name in ("same", "longer"))
    ids = torch.randint(5, 53, (2, 31))
    torch.testing.assert_close(long(ids)[0], short(ids)[0], rtol=1e-4, atol=1e-5)


def test_linearize_a_model_of_images(tmp_path, capsys):
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 23}
    config = ViTConfig(**sizes, image_size=42, patch_size=6, num_labels=3)
    ViTForImageClassification(config).save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "preprocessor_config.json").write_text("{}")
    out = said(capsys, "linearize", tmp_path / "theirs", tmp_path / "ours", "--projected_dim", "7")
    assert "LinearViTForImageClassification" in out and "tokenizer" not in out.lower()
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "ours")
    assert model(torch.zeros(1, 3, 42, 42)).logits.shape == (1, 3)
    assert (tmp_path / "ours" / "preprocessor_config.json").exists()


def test_the_adapter_that_ships_is_advised(tmp_path, monkeypatch, capsys):
    """Of the new n, if there is one; recognised by the fingerprint of the source."""
    source("BertModel", tmp_path / "theirs")
    theirs = AutoModel.from_pretrained(tmp_path / "theirs")
    for name, longest in (("ours-37", None), ("ours-74", 74)):
        (tmp_path / name).mkdir()
        about = {
            "base_model": {"fingerprint": base_fingerprint(theirs)},
            "linearize": {"max_position_embeddings": longest},
        }
        (tmp_path / name / "linformer.json").write_text(json.dumps(about))
    shipped = {name: tmp_path / name for name in ("ours-37", "ours-74")}
    monkeypatch.setattr(adapter, "shipped_adapters", lambda: shipped)
    longer = ["--max_position_embeddings", "74"]
    for name, options in (("ours-37", []), ("ours-74", longer)):
        main(["linearize", str(tmp_path / "theirs"), str(tmp_path / f"linear-{name}"), *options])
        advice = f"add `--adapter {name}`, which ships for this model, or run `linformer distill`"
        assert advice in capsys.readouterr().out
    torch.nn.init.ones_(theirs.embeddings.LayerNorm.bias)  # other weights
    theirs.save_pretrained(tmp_path / "others")
    assert "--adapter" not in said(capsys, "linearize", tmp_path / "others", tmp_path / "linear")


def test_linearize_rejects(tmp_path, capsys, monkeypatch):
    GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=1, n_head=2, vocab_size=31)).save_pretrained(tmp_path / "gpt")
    error = fail(capsys, "linearize", tmp_path / "gpt", tmp_path / "ours")
    assert "model: expected a pretrained encoder, got GPT2LMHeadModel in" in error
    torch.save({}, tmp_path / "model.pt")
    error = fail(capsys, "linearize", tmp_path / "model.pt", tmp_path / "ours")
    assert "model: expected a folder, got" in error and "which is a file" in error
    monkeypatch.chdir(tmp_path)
    assert "model: expected a folder, got model.pt, which is a file" in fail(capsys, "linearize", "model.pt", "ours")
    source("BertModel", tmp_path / "bert")
    main(["linearize", str(tmp_path / "bert"), str(tmp_path / "linear")])
    capsys.readouterr()
    longer = ["--max_position_embeddings", 4096]
    for options in ([], longer, [*longer, "--adapter", "all-MiniLM-L6-v2-4096"]):
        error = fail(capsys, "linearize", tmp_path / "linear", tmp_path / "ours", *options)
        assert (
            "model: expected one with full attention, got LinearBertModel, which is a Linformer (`linformer re" in error
        )
    LinformerModel(LinformerConfig(**OWN | {"attention": "full"})).save_pretrained(tmp_path / "full")
    error = fail_last_line(capsys, "linearize", tmp_path / "full", tmp_path / "ours")
    assert error.endswith('LinformerModel of this package; from_pretrained(…, attention="linformer") makes it linear')
