"""Ways to embed long texts: passages and ranks by hand, and the script at a tiny size."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import transformers

from linformer_kit import linearize
from reproduce import documents
from tests.long_texts import article, write_articles, write_encoder
from tests.reproduce.started import start


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An encoder, and beside it a linear one."""
    folder = write_encoder(tmp_path_factory.mktemp("models") / "teacher")
    student = linearize(
        transformers.AutoModel.from_pretrained(folder), 7, max_position_embeddings=251, sliding_window=5
    )
    student.save_pretrained(folder.parent / "student")
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder.parent / "student")
    write_articles(folder.parent / "articles.jsonl")
    return folder


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


def test_ranks_by_hand():
    texts = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.6, 0.8]])
    queries = np.array([[1, 0], [0.6, 0.8], [0, 1], [0.8, 0.6]])
    # Cosines: (1, 0, .6, .6), (.6, .8, 1, 1), (0, 1, .8, .8), (.8, .6, .96, .96); equal documents count against one.
    assert documents.ranks(queries, texts, [0, 2, 1, 1]).tolist() == [1, 2, 1, 4]


def test_scores_by_hand():
    assert documents.search_scores(np.array([1, 2, 10, 11, 1])) == {"recall@1": 0.4, "recall@10": 0.8, "queries": 5}
