"""Ways to embed long texts: each method beside its plain form, and the script at a tiny size."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from linformer_kit import linearize
from linformer_kit.models.base import set_positions
from reproduce import documents
from tests.long_texts import LONGEST, article, write_articles, write_encoder
from tests.reproduce.started import start

LENGTH = 127
TEXTS = [article(number, sentences=3 + 11 * number) for number in range(3)]
TOLERANCE = {"rtol": 0, "atol": 2e-6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An encoder, and beside it a linear one."""
    folder = write_encoder(tmp_path_factory.mktemp("models") / "teacher")
    student = linearize(teacher(folder), 7, max_position_embeddings=251, sliding_window=5)
    student.save_pretrained(folder.parent / "student")
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder.parent / "student")
    write_articles(folder.parent / "articles.jsonl")
    return folder


def teacher(folder: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModel.from_pretrained(folder)


def embedded(folder: Path, name: str, **options) -> np.ndarray:
    """Embeddings of `TEXTS` by a method."""
    given = {"lengths": [LONGEST, LENGTH], "precision": "float32", "batch_size": 3} | options
    return documents.build_method(name, documents.Settings(teacher=str(folder), **given))(TEXTS)


def plain(model: transformers.PreTrainedModel, folder: Path, tokens: list[int]) -> np.ndarray:
    """The normalised mean of the hidden states of one input."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        batch = torch.tensor([[tokenizer.bos_token_id, *tokens, tokenizer.eos_token_id]])
        mean = model.eval()(input_ids=batch)[0][0].mean(dim=0)
    return (mean / mean.norm()).numpy()


def ids(folder: Path, text: str) -> list[int]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


@pytest.mark.parametrize("name", ["cut", "stretched", "linearised", "student"])
def test_methods_of_one_pass(folder, name):
    model, length = teacher(folder), LONGEST if name == "cut" else LENGTH
    if name == "stretched":
        set_positions(model, LENGTH, "extend")
    elif name == "linearised":
        model = linearize(model, max_position_embeddings=LENGTH)
    elif name == "student":
        model, length = teacher(folder.parent / "student"), 251
    expected = [plain(model, folder, ids(folder, text)[: length - 2]) for text in TEXTS]
    np.testing.assert_allclose(embedded(folder, name, models=[str(folder.parent / "student")]), expected, **TOLERANCE)


@pytest.fixture
def common(folder, monkeypatch) -> list[object]:
    monkeypatch.setattr(documents, "in_fresh_process", lambda function, *arguments: function(*arguments))
    models = ["--teacher", folder, "--models", folder.parent / "student"]
    texts = ["--text_file", folder.parent / "articles.jsonl", "--articles", 7, "--queries", 3, "--candidates", 5]
    return [*models, *texts, "--lengths", 61, 127, 251, "--batch_size", 7, "--precision", "float32"]


@pytest.mark.e2e
def test_results_and_their_table(common, tmp_path, capsys):
    sizes = ["--tasks", "late_sentence", "passkey", "passages", "--passage", 29]
    every = start(documents, tmp_path / "out", *common, *sizes)["records"]
    shares = [record[key] for record in every for key in ("recall@1", "recall@10") if key in record]
    assert all(0 <= share <= 1 for share in shares)
    late = [record["position"] for record in every if record["measured"] == "late_sentence"]
    assert late == ["0–61", "61–127", "127–251"] * 5
    assert {record["n"] for record in every if record["measured"] == "passkey"} == {30, 61, 127, 251}
    records = [record for record in every if record["measured"] == "passages"]
    assert [record["name"] for record in records] == ["separate", "separate, with title"]
    (shape,) = {(record["texts"], record["passages"], record["queries"]) for record in records}
    assert shape == (7, 7 * -(-249 // 29), 3)
    assert all(0 <= record["recall@1"] <= record["recall@10"] <= 1 for record in records)
    assert "| separate, with title | " in capsys.readouterr().out


def test_passages_are_the_whole_text_and_queries_have_words_of_theirs(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [f"title {number}\n{article(number)}" for number in range(3)]
    passages = list(documents.divided(tokenizer, texts, 29))
    for text in texts:
        own = [passage for title, passage in passages if text.startswith(f"{title}\n")]
        assert "".join("".join(own).split()) == "".join(text.split()) and len(own) > 12
    targets, queries = documents.queried(passages, 11)
    assert len(queries) == len(set(targets)) == 11
    for target, query in zip(targets, queries, strict=True):
        title, words = query.split(": ")
        assert title == passages[target][0] and len(words.split()) == documents.WORDS
        assert re.search(".*".join(rf"\b{word}\b" for word in words.split()), passages[target][1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--queries", 8], "queries: expected 1 to 7 (the searched texts of at least 251 tokens), got 8"),
        (["--tasks", "passkey", "--lengths", 13, 251], "lengths: expected room for more than the "),
    ],
)
@pytest.mark.e2e
def test_what_cannot_be_used_is_one_line(common, tmp_path, options, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        start(documents, tmp_path / "out", *common, *options)
    error = capsys.readouterr().err.splitlines()[-1]
    assert exit_.value.code == 2 and error.startswith(f"linformer: error: {message}")


def test_ranks_by_hand():
    texts = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.6, 0.8]])
    queries = np.array([[1, 0], [0.6, 0.8], [0, 1], [0.8, 0.6]])
    # Cosines: (1, 0, .6, .6), (.6, .8, 1, 1), (0, 1, .8, .8), (.8, .6, .96, .96); equal documents count against one.
    assert documents.ranks(queries, texts, [0, 2, 1, 1]).tolist() == [1, 2, 1, 4]


def test_scores_by_hand():
    assert documents.search_scores(np.array([1, 2, 10, 11, 1])) == {"recall@1": 0.4, "recall@10": 0.8, "queries": 5}
