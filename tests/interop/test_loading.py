"""Encoders of transformers whose tokenizer or configuration is unusual: made to fit, or rejected in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from linformer_cli.cli import main
from linformer_cli.errors import InputError
from linformer_cli.settings import PredictSettings
from linformer_kit import LinformerConfig, LinformerModel
from linformer_kit.inference.batches import TextModel
from linformer_kit.inference.embed import load_embedder
from linformer_kit.inference.predict import Classifier
from linformer_kit.inference.scores import class_probabilities
from linformer_kit.interop.loading import auto_class_of, load_model, tokenizer_for
from linformer_kit.report import environment
from tests.conftest import SIZES, fail_last_line, randomise, save_bert_tokenizer, save_tokenizer

TEXTS = [("w7 w9 w11", None), ("w5", None), ("", None), ("w6 w8 w10 w12 w14 w16", None)]
BERT = {"hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 19}
TOKEN_TYPES = ["input_ids", "token_type_ids", "attention_mask"]


def save(
    folder: Path,
    config: transformers.PreTrainedConfig | None = None,
    *,
    kind: str = "BertForSequenceClassification",
    tokens: int = 53,
    dtype: torch.dtype = torch.float32,
    tokenizer: dict[str, object] | None = None,
    **fields: object,
) -> str:
    """A model of 53 tokens with random weights, and a tokenizer of as many, or so many, words."""
    usual = {"vocab_size": 53, "max_position_embeddings": 17, "pad_token_id": 1, "num_labels": 3}
    config = config or transformers.BertConfig(**{**BERT, **usual, **fields})
    torch.manual_seed(0)
    randomise(getattr(transformers, kind)(config)).to(dtype).save_pretrained(folder)
    save_tokenizer(folder, tokens)
    AutoTokenizer.from_pretrained(folder, **(tokenizer or {})).save_pretrained(folder)
    return str(folder)


def classified(
    model: str, texts: list[tuple[str, str | None]] = TEXTS, *, batch_size: int = 4, dtype: str = "float32"
) -> np.ndarray:
    """Probabilities `[texts, classes]`."""
    classify = Classifier(PredictSettings(model=model, file=[""], batch_size=batch_size, dtype=dtype))
    return class_probabilities(classify(texts)[0], multi_label=classify.labels.multi_label)


def embedded(model: str, *, batch_size: int) -> np.ndarray:
    return load_embedder(model, batch_size=batch_size).embed([text for text, _ in TEXTS])


@pytest.mark.parametrize("tokenizer", [{"padding_side": "left"}, {"model_input_names": ["input_ids"]}])
def test_a_text_in_a_batch_is_as_alone(tmp_path, tokenizer):
    model = save(tmp_path, tokenizer=tokenizer)
    for outputs in (classified, embedded):
        assert np.allclose(outputs(model, batch_size=4), outputs(model, batch_size=1), atol=1e-5)


ROTARY = {**BERT, "hidden_size": 24, "vocab_size": 53}


@pytest.mark.parametrize(
    ("kind", "fields", "side"),
    [
        ("ModernBert", {**ROTARY, "cls_token_id": 0, "sep_token_id": 2}, "right"),  # reads the first column
        ("XLNet", {"d_model": 24, "n_head": 2, "d_inner": 19, "n_layer": 1, "vocab_size": 53}, "left"),  # the last one
        ("Mistral", {**ROTARY, "num_key_value_heads": 1}, "right"),  # finds the last token
    ],
)
def test_a_classifier_does_not_read_padding_on_the_side_of_its_tokenizer(tmp_path, kind, fields, side):
    """As fine-tuning has it in its batches; for ModernBERT, and others without a table of positions."""
    config = getattr(transformers, f"{kind}Config")(**fields, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    name = save(tmp_path, config, kind=f"{kind}ForSequenceClassification", tokenizer={"padding_side": "left"})
    model, tokenizer, *_ = load_model(name, AutoModelForSequenceClassification, "a classifier")
    assert tokenizer.padding_side == side
    texts = ["w7 w9 w11 w12 w14", "w5 w6"]
    alone = [model(**tokenizer([text], return_tensors="pt")).logits[0] for text in texts]
    padded = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    assert torch.allclose(padded, torch.stack(alone), atol=1e-5)


GPT2 = {"n_embd": 22, "n_head": 2, "n_layer": 1, "n_positions": 17}
PADDING_READERS = {
    "ConvBert": ({**BERT, "hidden_size": 24, "embedding_size": 24, "conv_kernel_size": 3}, {}),
    "GPT2 with another padding token": ({**GPT2, "pad_token_id": 0}, {}),
}


@pytest.mark.parametrize("name", PADDING_READERS)
def test_a_text_is_as_alone_where_the_model_reads_padding(tmp_path, name):
    """Which is found by running it: such a model gets one text at a time."""
    fields, tokenizer = PADDING_READERS[name]
    kind = name.split()[0]
    usual = {"vocab_size": 53, "max_position_embeddings": 17, "pad_token_id": 1, "num_labels": 3}
    config = getattr(transformers, f"{kind}Config")(**{**usual, **fields})
    model = save(tmp_path, config, kind=f"{kind}ForSequenceClassification", tokenizer=tokenizer)
    texts = [*TEXTS, ("w12 w13 w14", None), ("w15", None)]
    alone = classified(model, texts, batch_size=1)
    assert np.allclose(classified(model, texts, batch_size=6), alone, atol=1e-5)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TextModel, "_reads_padding", False)
        assert not np.allclose(classified(model, texts, batch_size=6), alone, atol=1e-3), "else this tests nothing"


def test_pairs_of_a_model_with_one_token_type(tmp_path):
    model = save(tmp_path, type_vocab_size=1, tokenizer={"model_input_names": TOKEN_TYPES})
    assert AutoTokenizer.from_pretrained(model)("w7", "w9")["token_type_ids"] == [0, 1]
    joined = classified(model, [("w7 w9", None), ("w5 w6 w8", None)])  # without special tokens, between them either
    assert np.allclose(classified(model, [("w7", "w9"), ("w5 w6", "w8")]), joined, atol=1e-5)


def test_a_tokenizer_for_a_model_without_token_types(tmp_path):
    save_bert_tokenizer(tmp_path)
    tokenizer_for(LinformerModel(LinformerConfig(**SIZES)), str(tmp_path)).save_pretrained(tmp_path)
    assert set(AutoTokenizer.from_pretrained(tmp_path)("x", "y")) == {"input_ids", "attention_mask"}


def test_a_configuration_without_a_padding_token(tmp_path):
    config = transformers.GPT2Config(vocab_size=53, n_embd=22, n_head=2, n_layer=1, n_positions=17, num_labels=3)
    assert config.pad_token_id is None
    model = save(tmp_path, config, kind="GPT2ForSequenceClassification")
    assert np.allclose(classified(model), classified(model, batch_size=1), atol=1e-5)


def test_weights_are_as_saved_unless_another_type_is_asked_for(tmp_path, monkeypatch):
    """Also where the processor has instructions for bfloat16, of classifiers as of embedders."""
    monkeypatch.setattr(environment.Processor, "has_instructions", lambda *_: True)
    half, full = (
        save(tmp_path / str(dtype), dtype=dtype, classifier_dropout=0.0) for dtype in (torch.float16, torch.float32)
    )
    assert np.allclose(classified(half, dtype="auto"), classified(full), atol=1e-2)
    assert np.array_equal(classified(full, dtype="auto"), classified(full))
    for dtype, weights in (("auto", torch.float16), ("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        classifier = Classifier(PredictSettings(model=half, file=[""], dtype=dtype))
        assert classifier.model.dtype == load_embedder(half, batch_size=1, dtype=dtype).model.dtype == weights


def test_an_added_token_that_no_text_needs(tmp_path):
    model = save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(model)
    plain = classified(model)
    assert tokenizer.add_tokens(["<image>"], special_tokens=True) == 1 and len(tokenizer) == 54
    tokenizer.save_pretrained(model)
    assert np.array_equal(classified(model), plain)
    with pytest.raises(InputError, match=r"^model: expected one that reads these texts: index out of range in self$"):
        classified(model, [("w7 <image>", None)])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"tokenizer": {"pad_token": "<padding>"}},
            r"model: expected a tokenizer of at most 53 tokens \(the model's vocabulary\), got 54",
        ),
        (
            {"id2label": {1: "a", 2: "b", 3: "c"}},
            r"model: expected different classes, numbered from 0, in id2label, got 'a', 'b', 'c' in .*",
        ),
        ({"num_labels": 1}, r"model: expected a classifier, got a model with 1 outputs in .*"),
    ],
)
def test_rejected_classifiers(tmp_path, fields, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        classified(save(tmp_path, **fields))


def test_rejected_embedders(tmp_path):
    sizes = {"vocab_size": 53, "pad_token_id": 1}
    t5 = transformers.T5Config(
        d_model=22, d_kv=11, d_ff=19, num_layers=1, num_heads=2, decoder_start_token_id=1, **sizes
    )
    fnet = transformers.FNetConfig(hidden_size=22, num_hidden_layers=1, intermediate_size=19, **sizes)
    for config, kind, message in (
        (fnet, "FNetModel", "with an attention mask, got FNetModel"),
        (t5, "T5Model", "got T5Model, an encoder with a decoder"),
    ):
        model = save(tmp_path / kind, config, kind=kind)
        with pytest.raises(InputError, match=rf"^model: expected an encoder of texts.*{message}$"):
            embedded(model, batch_size=1)


def test_a_configuration_that_names_no_class(tmp_path, caplog):
    """Such as that of old checkpoints of BERT."""
    model = save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": None}))
    assert auto_class_of(AutoConfig.from_pretrained(model), model, "an encoder") is transformers.AutoModel
    assert "config.json names no architectures: read as an encoder without head" in caplog.text
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [3]}))
    with pytest.raises(InputError, match=r"^model: expected a list of names as architectures in .*, got "):
        auto_class_of(AutoConfig.from_pretrained(model), model, "an encoder")


COMMANDS = {
    "predict": ["MODEL", "texts.csv"],
    "evaluate": ["MODEL", "texts.csv"],
    "embed": ["MODEL", "texts.csv", "--out", "out.npy"],
    "fill-mask": ["MASKED", "w7 <mask>", "--top_k", "3"],
}


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Arguments of a command, for two models and texts in the working directory."""
    monkeypatch.chdir(tmp_path)
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    save(tmp_path / "MODEL", tokenizer=tokens, id2label={0: "a", 1: "b", 2: "c"})
    save(tmp_path / "MASKED", kind="BertForMaskedLM")
    rows = "".join(f"{'w7 w9 w11 ' * 9},{label}\n" for label in "abc")
    (tmp_path / "texts.csv").write_text(f"text,label\n{rows}")
    return lambda name: [name, *(each.replace("MODEL", "./MODEL") for each in COMMANDS[name])]


@pytest.mark.e2e
@pytest.mark.parametrize("name", COMMANDS)
def test_a_model_runs_where_the_setting_says(prepared, name, monkeypatch, capsys):
    """`meta` stands for an accelerator, which has no results; no model is loaded for an unavailable one."""
    monkeypatch.setattr(environment, "best_device", lambda: torch.device("meta"))
    message = "device: expected cpu or an available accelerator, got toaster: "
    with monkeypatch.context() as patched:
        patched.setattr(transformers.PreTrainedModel, "from_pretrained", None)
        assert message in fail_last_line(capsys, *prepared(name), "--device", "toaster")
    main([*prepared(name), "--device", "cpu"])


def with_weights(folder: str, change) -> str:
    path = Path(folder) / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    return folder


def test_weights_of_the_encoder_that_have_no_place_are_rejected(tmp_path):
    """transformers would drop them: it computes no relative positions of BERT any more."""
    name = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    folder = with_weights(save(tmp_path / "relative"), lambda weights: weights | {name: torch.ones(33, 11)})
    with pytest.raises(
        InputError, match=rf"^model: expected weights that fit its config.json .*, got unexpected {name}$"
    ):
        load_model(folder, AutoModelForSequenceClassification, "a classifier")
    with pytest.raises(InputError, match=r"got unexpected .*encoder.layer.0.attention.self.distance_embedding.weight$"):
        load_model(folder, AutoModel, "an encoder")


@pytest.mark.parametrize("auto_class", [AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification])
def test_heads_poolers_and_names_of_old_files_are_not_lost(auto_class, tmp_path):
    def old(weights):
        weights |= {"bert.embeddings.position_ids": torch.arange(17)[None], "classifier.weight": torch.ones(2, 22)}
        weights |= {"cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"].clone()}
        olden = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, before in olden.items():
            weights = {name.replace(new, before): tensor for name, tensor in weights.items()}
        return weights

    folder = with_weights(save(tmp_path / "old", kind="BertForPreTraining"), old)
    head = {"num_labels": 2, "id2label": {0: "a", 1: "b"}} if auto_class is AutoModelForSequenceClassification else None
    loaded = load_model(folder, auto_class, "an encoder", head=head).model.base_model
    norm = load_file(Path(folder) / "model.safetensors")["bert.embeddings.LayerNorm.gamma"]
    assert torch.equal(loaded.embeddings.LayerNorm.weight, norm)


@pytest.mark.parametrize(("kind", "expected"), [("ModernBertModel", "exact_windows"), ("BertModel", "sdpa")])
def test_layers_with_a_window_run_in_blocks(kind, expected, tmp_path, caplog):
    caplog.set_level("INFO", logger="linformer_kit")
    sizes = BERT | {"num_hidden_layers": 2, "vocab_size": 53, "pad_token_id": 0}
    tokens = dict.fromkeys(("cls_token_id", "sep_token_id", "eos_token_id", "bos_token_id"), 1)
    fields = {"local_attention": 6, **tokens} if kind == "ModernBertModel" else {}
    save(tmp_path, getattr(transformers, kind.replace("Model", "Config"))(**sizes, **fields), kind=kind)
    model = load_model(str(tmp_path), AutoModel, "an encoder").model
    assert model.config._attn_implementation == expected
    assert ("exact_windows" in caplog.text) == (expected == "exact_windows")
