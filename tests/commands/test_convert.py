"""`linformer convert`, from a file or folder to a folder that all other commands read."""

from __future__ import annotations

import json

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    ViTConfig,
    ViTForImageClassification,
)

from linformer_cli.cli import main
from linformer_cli.settings import ConvertSettings
from linformer_kit import LinformerModel
from linformer_kit.files.manifest import damage
from linformer_kit.interop import convert
from linformer_kit.linearized import adapter
from linformer_kit.linearized.adapter import base_fingerprint
from tests.conftest import encoded_lengths, fail, fail_last_line, pad_always, save_tokenizer
from tests.interop.checkpoints.test_encoders import source
from tests.interop.test_full_attention import transformer
from tests.reference import fairseq_linformer as official


def said(capsys, *words: object) -> str:
    """What a command prints."""
    capsys.readouterr()
    main(list(map(str, words)))
    return capsys.readouterr().out


def test_a_folder_with_its_tokenizer(tmp_path, capsys):
    source("RobertaForMaskedLM", tmp_path / "theirs")
    save_tokenizer(tmp_path / "theirs")
    pad_always(tmp_path / "theirs", 11)
    options = ["--projected_dim", "7", "--sharing", "layerwise", "--sliding_window", "4"]
    out = said(capsys, "convert", tmp_path / "theirs", tmp_path / "ours", *options)
    assert "LinformerForMaskedLM" in out and "n 37, k 7, sharing layerwise" in out and "Weights of the" not in out
    assert "1 matrices E and F (linear). They are untrained" in out
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "ours")
    assert (model.config.sharing, model.config.sliding_window) == ("layerwise", 4)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer.model_max_length == 37 and tokenizer("w7 w9")["input_ids"] == [7, 9]
    assert encoded_lengths(tmp_path / "ours", "w7", "w7 " * 99) == [1, 37]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]
    assert damage(tmp_path / "ours") is None and (tmp_path / "ours" / "manifest.json").exists()


def test_a_transformer_of_this_package(tmp_path, capsys):
    transformer(tmp_path / "theirs", vocab_size=53)
    save_tokenizer(tmp_path / "theirs")
    arguments = ["--projected_dim", "7", "--max_position_embeddings", "62", "--resize_mode", "interpolate"]
    assert "n 62, k 7" in said(capsys, "convert", tmp_path / "theirs", tmp_path / "ours", *arguments)
    assert AutoTokenizer.from_pretrained(tmp_path / "ours").model_max_length == 62
    assert damage(tmp_path / "ours") is None
    main(["convert", str(tmp_path / "ours"), str(tmp_path / "longer"), "--max_position_embeddings", "124"])
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "longer")
    assert (model.config.max_position_embeddings, model.config.projected_dim) == (124, 7)
    assert AutoTokenizer.from_pretrained(tmp_path / "longer").model_max_length == 124


def test_a_fairseq_file(tmp_path, capsys):
    content = official.checkpoint("headwise")
    torch.save(content, tmp_path / "model.pt")
    save_tokenizer(tmp_path / "words")
    out = tmp_path / "below" / "ours"
    assert "untrained" not in said(capsys, "convert", tmp_path / "model.pt", out, "--tokenizer", tmp_path / "words")
    model = AutoModelForMaskedLM.from_pretrained(out)
    tokens = torch.randint(5, official.VOCAB, (2, 13))
    expected = official.masked_lm_logits(content["model"], tokens)
    torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "OUT"], "model: expected a pretrained encoder, got nowhere, which is no folder here; "),
        (["SOURCE", "SOURCE"], "out: expected a new or empty folder, got"),
        (["FILE", "OUT", "--sharing", "none"], "sharing: expected none for a model that determines it, got 'none'"),
        (["FILE", "OUT", "--sharing", "headwise"], "sharing: expected none for a model that determines it, got 'head"),
        (
            ["LINEAR", "OUT", "--max_position_embeddings", "99", "--attention", "linformer"],
            "attention: expected none for a model that determines it, got 'linformer'",
        ),
        (["SOURCE", "OUT", "--attention", "full", "--sliding_window", "0"], "sliding_window: expected none with full"),
        (["BROKEN", "OUT"], "tokenizer: expected a tokenizer, got"),
        (["FILE", "OUT", "--tokenizer", "LARGE"], "tokenizer: expected at most 53 tokens, got 54"),
        (["OTHER", "OUT"], "expected a model of type roberta, xlm-roberta, camembert, bert, linformer, got distilbert"),
        (["LINEAR", "OUT"], "model: expected a model with full attention, got a Linformer in"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, message, tmp_path, capsys):
    source("BertForMaskedLM", tmp_path / "SOURCE")
    source("BertForMaskedLM", tmp_path / "BROKEN")
    source("DistilBertForMaskedLM", tmp_path / "OTHER", dim=33, n_heads=3, hidden_dim=29, n_layers=2)
    transformer(tmp_path / "LINEAR", attention="linformer", projected_dim=7)
    (tmp_path / "BROKEN" / "tokenizer.json").write_text("{")
    torch.save(official.checkpoint("headwise"), tmp_path / "FILE")
    save_tokenizer(tmp_path / "LARGE", 54)
    places = [str(tmp_path / name) if name.isupper() else name for name in arguments]
    assert message in fail_last_line(capsys, "convert", *places).splitlines()[-1]
    assert not (tmp_path / "OUT").exists()


def test_what_is_left_out_is_named(tmp_path, capsys):
    source("BertForPreTraining", tmp_path / "bert")
    main(["convert", str(tmp_path / "bert"), str(tmp_path / "masked")])
    told = "Weights of the source that are not in the result: "
    out = capsys.readouterr().out
    assert f"{told}bert.pooler.dense, cls.seq_relationship\n" in out
    assert "No tokenizer: the source has none." in out
    content = official.checkpoint("headwise", classification_head="imdb")
    torch.save(content, tmp_path / "model.pt")
    main(["convert", str(tmp_path / "model.pt"), str(tmp_path / "base")])
    heads = [f"classification_heads.imdb.{name}" for name in ("dense", "out_proj")]
    assert f"{told}{', '.join(heads)}\n" in capsys.readouterr().out


def test_nothing_is_left_behind_by_what_did_not_end(tmp_path, monkeypatch):
    def fail(self, folder):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    source("BertModel", tmp_path / "theirs")
    monkeypatch.setattr(LinformerModel, "save_pretrained", fail)
    with pytest.raises(KeyboardInterrupt):
        convert.main(ConvertSettings(model=str(tmp_path / "theirs"), out=str(tmp_path / "ours")))
    assert {path.name for path in tmp_path.iterdir()} == {"theirs"}


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


@pytest.mark.parametrize(
    ("command", "options", "limit", "embeds"),
    [
        ("linearize", ["--max_position_embeddings", "74"], 74, True),
        ("convert", ["--attention", "full"], 13, True),
        ("convert", [], 13, False),
    ],
)
def test_only_an_embedder_keeps_how_texts_are_embedded(command, options, limit, embeds, tmp_path, caplog):
    """The limit of tokens stays; a model with untrained E and F is none, and `embed` says so."""
    source("BertModel", tmp_path / "theirs")
    save_tokenizer(tmp_path / "theirs")
    encoder = Transformer(str(tmp_path / "theirs"), max_seq_length=13)
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), "cls"), Normalize()]
    prompts = {"query": "w9 "}
    SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save(str(tmp_path / "theirs"))
    main([command, str(tmp_path / "theirs"), str(tmp_path / "ours"), *options])
    assert damage(tmp_path / "ours") is None and (tmp_path / "ours" / "modules.json").exists() == embeds
    (tmp_path / "texts.txt").write_text("w7 w9\n")
    main(["embed", *map(str, (tmp_path / "ours", tmp_path / "texts.txt", "--out", tmp_path / "vectors.npy"))])
    assert ("a plain encoder" in caplog.text) != embeds
    untrained = "E and F were never trained: the embeddings mean nothing yet" in caplog.text
    left_out = "theirs: not in the result: Pooling, Normalize, prompts" in caplog.text
    assert untrained == left_out == (not embeds)
    loaded = SentenceTransformer(str(tmp_path / "ours"), device="cpu", local_files_only=True)
    assert loaded.max_seq_length == limit


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


@pytest.mark.parametrize("command", ["convert", "linearize"])
def test_the_head_of_a_setfit_folder_is_named(command, tmp_path, caplog):
    source("BertModel", tmp_path / "theirs")
    (tmp_path / "theirs" / "modules.json").write_text('[{"path": ""}]')
    (tmp_path / "theirs" / "model_head.pkl").write_bytes(b"")
    main([command, str(tmp_path / "theirs"), str(tmp_path / "ours")])
    assert "theirs: not in the result: model_head.pkl" in caplog.text


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


def test_without_linear_layers_nothing_is_new(tmp_path, capsys):
    source("BertModel", tmp_path / "bert")
    out = said(capsys, "linearize", tmp_path / "bert", tmp_path / "exact", "--layers", "[]")
    assert "full attention" in out and "New:" not in out and " k " not in out
    error = fail(capsys, "distill", tmp_path / "bert", "--output_dir", tmp_path / "student", "--layers", "[]")
    assert "layers: expected one or more to distil, got none" in error


def test_linearize_rejects(tmp_path, capsys):
    GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=1, n_head=2, vocab_size=31)).save_pretrained(tmp_path / "gpt")
    error = fail(capsys, "linearize", tmp_path / "gpt", tmp_path / "ours")
    assert "model: expected a pretrained encoder, got GPT2LMHeadModel in" in error
    torch.save({}, tmp_path / "model.pt")
    error = fail(capsys, "linearize", tmp_path / "model.pt", tmp_path / "ours")
    assert "model: expected a folder, got" in error and "which is a file" in error
    source("BertModel", tmp_path / "bert")
    main(["linearize", str(tmp_path / "bert"), str(tmp_path / "linear")])
    capsys.readouterr()
    longer = ["--max_position_embeddings", 4096, "--adapter", "all-MiniLM-L6-v2-4096"]
    for options in ([], longer):
        error = fail(capsys, "linearize", tmp_path / "linear", tmp_path / "ours", *options)
        assert "model: expected one with full attention" in error
    assert "model: expected one with full attention, got LinearBertModel, which is a Linformer" in error
    transformer(tmp_path / "full", attention=["full", "full"])
    error = fail(capsys, "linearize", tmp_path / "full", tmp_path / "ours")
    assert "k 7" in said(capsys, "convert", tmp_path / "full", tmp_path / "ours", "--projected_dim", 7)
    assert error.endswith("LinformerForMaskedLM of this package; `linformer convert` makes it linear")


def test_a_linear_one_made_longer(tmp_path, capsys):
    source("BertModel", tmp_path / "bert")
    main(["linearize", str(tmp_path / "bert"), str(tmp_path / "linear"), "--projected_dim", "7"])
    out = said(capsys, "linearize", tmp_path / "linear", tmp_path / "longer", "--max_position_embeddings", "74")
    assert "n 74, k 7" in out and "untrained" not in out.partition("n 74")[2]
    short, long = (AutoModel.from_pretrained(tmp_path / name).eval() for name in ("linear", "longer"))
    ids = torch.randint(5, 53, (2, 31))
    torch.testing.assert_close(long(ids)[0], short(ids)[0], rtol=1e-4, atol=1e-5)
    error = fail(capsys, "linearize", tmp_path / "longer", tmp_path / "no", "--max_position_embeddings", "5")
    assert "max_position_embeddings: expected at least 74 for mode extend, got 5" in error
