"""Where documents come from, and which are held out."""

from __future__ import annotations

import json
import os
import shutil

import datasets
import pytest

from linformer_kit.data.corpus import load_corpus
from linformer_kit.errors import InputError
from linformer_kit.settings import CorpusSettings


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Make settings whose caches are all below tmp_path."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub_cache"))

    def make(*names, **fields):
        files = [str(tmp_path / name) for name in names] or None
        return CorpusSettings(train_file=files, **{"cache_dir": str(tmp_path / "cache"), **fields})

    return make


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def write_json_lines(path, texts, column="text"):
    return write_lines(path, [json.dumps({column: text, "id": 7}) for text in texts])


def texts(documents):
    return [row["text"] for row in documents]


def numbered(count, word="document"):
    return [f"{word} {number}" for number in range(count)]


def test_split_is_by_document_whole_and_of_the_asked_size(tmp_path, settings):
    write_lines(tmp_path / "a.txt", numbered(101))
    corpus = load_corpus(settings("a.txt", document="line", validation_fraction=0.07), seed=3)
    assert len(corpus.validation) == 7 and len(corpus.train) == 94
    assert sorted(texts(corpus.train) + texts(corpus.validation)) == sorted(numbered(101))
    assert corpus.train.column_names == ["text"] and not corpus.streaming
    assert corpus.description == "a.txt: 94 documents to learn from, 7 for validation"


def test_split_does_not_depend_on_the_order_but_on_the_seed(tmp_path, settings):
    write_lines(tmp_path / "a.txt", numbered(101))
    write_lines(tmp_path / "b.txt", reversed(numbered(101)))
    held_out = [
        set(texts(load_corpus(settings(name, document="line", validation_fraction=0.11), seed=seed).validation))
        for name, seed in [("a.txt", 3), ("b.txt", 3), ("a.txt", 5)]
    ]
    assert held_out[0] == held_out[1] != held_out[2]


@pytest.mark.parametrize("streaming", [False, True])
def test_equal_documents_fall_on_the_same_side(tmp_path, settings, streaming):
    write_lines(tmp_path / "a.txt", numbered(13) * 5)
    made = settings("a.txt", document="line", validation_fraction=0.3, streaming=streaming)
    corpus = load_corpus(made, seed=0)
    train, validation = texts(corpus.train), texts(corpus.validation)
    assert not set(train) & set(validation) and len(train) + len(validation) == 65


def test_validation_file_leaves_all_training_documents(tmp_path, settings):
    write_lines(tmp_path / "a.txt", ["one document"])
    held_out = write_lines(tmp_path / "b.txt", ["another"])
    corpus = load_corpus(settings("a.txt", validation_file=[held_out]), seed=0)
    assert (texts(corpus.train), texts(corpus.validation)) == (["one document\n"], ["another\n"])


@pytest.mark.e2e
def test_built_in_corpus(settings):
    corpus = load_corpus(settings(), seed=0)
    count = len(corpus.train) + len(corpus.validation)
    assert 500 < count < 1000 and len(corpus.validation) == round(0.05 * count)
    assert corpus.description.startswith("standard library of Python 3.")


def test_fingerprint_changes_with_whatever_changes_the_documents(tmp_path, settings):
    write_json_lines(tmp_path / "a.jsonl", numbered(7))
    other = write_json_lines(tmp_path / "b.jsonl", numbered(5, "other"))
    base = settings("a.jsonl")
    made = [
        load_corpus(base, seed=0),
        load_corpus(base, seed=1),
        load_corpus(settings("a.jsonl", validation_fraction=0.5), seed=0),
        load_corpus(settings("a.jsonl", validation_file=[other]), seed=0),
    ]
    write_json_lines(tmp_path / "b.jsonl", numbered(3, "other"))
    made.append(load_corpus(settings("a.jsonl", validation_file=[other]), seed=0))
    write_json_lines(tmp_path / "a.jsonl", numbered(11))
    made.append(load_corpus(base, seed=0))
    renamed = write(tmp_path / "c.txt", (tmp_path / "a.jsonl").read_text())  # lines, and not fields of them
    made.append(load_corpus(settings(renamed.name, document="line"), seed=0))
    made.append(load_corpus(settings("a.jsonl", document="line"), seed=0))
    assert len({corpus.fingerprint for corpus in made}) == len(made)
    assert all(int(corpus.fingerprint, 16) for corpus in made)


@pytest.mark.parametrize("streaming", [False, True])
def test_text_that_is_fetched_again_is_the_same(streaming, tmp_path, settings):
    """Contents and order of the files count (the order determines that of documents), not their times or paths."""
    write_lines(tmp_path / "a.txt", numbered(7))
    write_lines(tmp_path / "b.txt", numbered(5, "other"))
    first = load_corpus(settings("a.txt", "b.txt", streaming=streaming, document="line"), seed=0).fingerprint
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    assert load_corpus(settings("a.txt", "b.txt", streaming=streaming, document="line"), seed=0).fingerprint == first
    (tmp_path / "there").mkdir()
    for name in ("a.txt", "b.txt"):
        shutil.copyfile(tmp_path / name, tmp_path / "there" / name)
    assert load_corpus(settings("there", streaming=streaming, document="line"), seed=0).fingerprint == first
    (tmp_path / "there" / "a.txt").rename(tmp_path / "there" / "c.txt")
    assert load_corpus(settings("there", streaming=streaming, document="line"), seed=0).fingerprint != first


def write(path, text):
    path.write_text(text)
    return path


def test_stream_of_files_has_the_same_documents_in_another_order_each_epoch(tmp_path, settings):
    write_lines(tmp_path / "a.txt", numbered(101))
    write_json_lines(tmp_path / "b.jsonl", numbered(53, "row"))
    made = settings("a.txt", "b.jsonl", document="line", streaming=True, validation_fraction=0.1)
    corpus = load_corpus(made, seed=0)
    assert corpus.streaming and isinstance(corpus.train, datasets.IterableDataset)
    first = texts(corpus.train)
    assert sorted(first + texts(corpus.validation)) == sorted(numbered(101) + numbered(53, "row"))
    assert texts(corpus.train) == first
    corpus.train.set_epoch(1)
    assert texts(corpus.train) != first and sorted(texts(corpus.train)) == sorted(first)


def test_stream_of_files_is_checked_at_once(tmp_path, settings):
    write_json_lines(tmp_path / "a.jsonl", numbered(7))
    write_lines(tmp_path / "b.jsonl", ["{"])
    with pytest.raises(InputError, match=r"b\.jsonl line 1: not JSON"):
        load_corpus(settings("a.jsonl", "b.jsonl", streaming=True), seed=0)


@pytest.mark.parametrize("streaming", [None, False])
def test_hub_data_is_streamed_by_default_and_keeps_its_own_split(tmp_path, settings, streaming):
    write_json_lines(tmp_path / "hub/train.jsonl", [*numbered(7), " "], column="body")
    write_json_lines(tmp_path / "hub/validation.jsonl", numbered(3, "held out"), column="body")
    made = settings(dataset_name=str(tmp_path / "hub"), text_column="body", streaming=streaming)
    corpus = load_corpus(made, seed=0)
    assert corpus.streaming is (streaming is None)
    assert sorted(texts(corpus.train)) == numbered(7) and texts(corpus.validation) == numbered(3, "held out")
    assert list(next(iter(corpus.train))) == ["text"]


def test_one_document_cannot_be_split(tmp_path, settings):
    write_lines(tmp_path / "a.txt", ["one", "document"])
    message = r"a\.txt: expected at least 2 different texts .*, got 1; give --validation_file, or .* --document"
    with pytest.raises(InputError, match=message):
        load_corpus(settings("a.txt"), seed=0)


def test_blank_corpus(tmp_path, settings):
    write_lines(tmp_path / "a.txt", [" ", ""])
    with pytest.raises(InputError, match=r"a\.txt: expected documents with text, got none in 1 files$"):
        load_corpus(settings("a.txt"), seed=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"dataset_name": "x", "train_file": ["y"]},
            "train_file and dataset_name are both given; expected one of them",
        ),
    ],
)
def test_settings_that_cannot_be_meant(fields, message):
    with pytest.raises(InputError) as error:
        load_corpus(CorpusSettings(**fields), seed=0)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("train", {"text_column": "body"}, r"no column 'body' \(text_column\); it has 'text', 'id'$"),
        ("train", {"text_column": "id"}, r"column 'id' is Value\('int64'\); expected strings$"),
    ],
)
def test_bad_hub_data(tmp_path, settings, file, fields, message):
    write_json_lines(tmp_path / f"hub/{file}.jsonl", numbered(7))
    with pytest.raises(InputError, match=f"^dataset_name .*hub: {message}"):
        load_corpus(settings(dataset_name=str(tmp_path / "hub"), **fields), seed=0)


def test_hub_data_that_does_not_exist(settings):
    with pytest.raises(InputError, match=r"^dataset_name nobody/nothing: [^\n]*'nobody/nothing'[^\n]*$"):
        load_corpus(settings(dataset_name="nobody/nothing"), seed=0)
