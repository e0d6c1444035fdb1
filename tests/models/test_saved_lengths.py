"""Models that were made longer than the files beside them say: a warning on loading, and `convert` mends it."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from linformer_kit import LinformerModel, linearize
from linformer_kit.commands.cli import main
from linformer_kit.interop.checkpoints.sentences import lengthened
from linformer_kit.models import saved_lengths
from tests.conftest import write_teacher

SIZES = {
    "vocab_size": 101,
    "hidden_size": 33,
    "num_attention_heads": 3,
    "num_hidden_layers": 1,
    "intermediate_size": 29,
}
N = 23


@pytest.fixture(autouse=True)
def nothing_said_before():
    saved_lengths._warn.cache_clear()


def model_of(kind, config):
    if kind == "ours":
        return LinformerModel(config(max_position_embeddings=N))
    return linearize(BertModel(BertConfig(max_position_embeddings=N, **SIZES)), 5)


def said(caplog):
    return [record.message for record in caplog.records if record.name == "linformer_kit.models.saved_lengths"]


def write_limits(folder, tokenizer, sentences):
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": tokenizer}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": sentences}))


@pytest.mark.parametrize("kind", ["ours", "linearised"])
def test_a_model_that_was_made_longer(kind, config, tmp_path, caplog):
    model = model_of(kind, config)
    model.save_pretrained(tmp_path)
    write_limits(tmp_path, N, N)
    AutoModel.from_pretrained(tmp_path)
    assert not said(caplog)
    model.resize_sequence_length(2 * N)
    model.save_pretrained(tmp_path)
    AutoModel.from_pretrained(tmp_path)
    type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert said(caplog) == [
        f"{tmp_path}: the model takes {2 * N} tokens, but these limits truncate texts to fewer: "
        f"model_max_length in tokenizer_config.json: {N}, max_seq_length in sentence_bert_config.json: {N}"
    ]


@pytest.mark.parametrize("limits", [(2 * N, N), (10**30, N), (N, 7), ("many", N), (None, N)])
def test_what_is_no_slip(limits, config, tmp_path, caplog):
    """A shorter limit of sentence-transformers alone is a choice, as all-MiniLM-L6-v2 made it."""
    model_of("ours", config).save_pretrained(tmp_path)
    write_limits(tmp_path, *limits)
    AutoModel.from_pretrained(tmp_path)
    assert not said(caplog)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [("max_length: 7", False), ("max_length: 11", True), ("max_length: null", True), ("{", True)],
)
def test_a_limit_that_a_training_was_asked_for_is_no_slip(settings, warned, config, tmp_path, caplog):
    model_of("ours", config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 7}))
    (tmp_path / "settings.yaml").write_text(settings)
    AutoModel.from_pretrained(tmp_path)
    assert bool(said(caplog)) == warned


@pytest.mark.parametrize("content", ["", "{", "[3]", "3", '{"model_max_length": -Infinity}'])
def test_damaged_files_end_nothing(content, config, tmp_path):
    model_of("ours", config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    assert AutoModel.from_pretrained(tmp_path)


def test_convert_mends_it(tmp_path):
    """Once the model is longer, by Python, all files beside it follow; before that a shorter choice is kept."""
    teacher = write_teacher(tmp_path / "teacher", "number was good 0 1 2 3 4 5 6 7 8 9", "RobertaModel")
    (teacher / "modules.json").write_text('[{"path": ""}]')
    n = AutoTokenizer.from_pretrained(teacher).model_max_length
    (teacher / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": n - 2}))
    main(["convert", str(teacher), str(tmp_path / "linear"), "--in_place", "--projection=mean_pool"])
    assert limits(tmp_path / "linear") == (n, n - 2)
    model = AutoModel.from_pretrained(tmp_path / "linear")
    model.resize_sequence_length(2 * n)
    model.save_pretrained(tmp_path / "linear")
    (tmp_path / "linear" / "manifest.json").unlink()  # whose hashes are of the shorter model
    assert limits(tmp_path / "linear") == (n, n - 2)
    longer = f"--max_position_embeddings={2 * n}"
    main(["convert", str(tmp_path / "linear"), str(tmp_path / "longer"), "--in_place", longer])
    assert limits(tmp_path / "longer") == (2 * n, 2 * n)


@pytest.mark.parametrize(("limits", "expected"), [((N, N), 2 * N), ((N, 7), 2 * N), ((2 * N, N), None)])
def test_whether_sentence_files_follow(limits, expected, tmp_path):
    write_limits(tmp_path, *limits)
    assert lengthened(str(tmp_path), 2 * N) == expected
    assert lengthened("hub/name", 2 * N) is None and lengthened(str(tmp_path), None) is None


def limits(folder):
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"]
    return tokenizer, json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
