"""Where documents come from, and which are held out."""

from __future__ import annotations

import json
import os
import re
import shutil

import datasets
import pytest
from datasets import Dataset
from hypothesis import assume, given
from hypothesis import strategies as st

from linformer_cli.errors import InputError
from linformer_cli.settings import CorpusSettings
from linformer_kit.data.corpus import load_corpus, split


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a corpus of files in `tmp_path`; all caches are there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub_cache"))

    def load(*names, seed=0, **fields):
        files = [str(tmp_path / name) for name in names] or None
        settings = CorpusSettings(train_file=files, **fields)
        return load_corpus(settings, seed=seed)

    return load


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def write_json_lines(path, texts, column="text"):
    return write_lines(path, [json.dumps({column: text, "id": 7}) for text in texts])


def texts(side):
    """Of a side of a corpus."""
    return side.documents["text"][:]


def numbered(count, word="document"):
    return [f"{word} {number}" for number in range(count)]


def test_validation_documents_that_are_learnt_are_counted(tmp_path, load, caplog):
    write_lines(tmp_path / "a.txt", numbered(11))
    others = {"same": [*numbered(3), "another", "another"], "new": numbered(3, "other")}
    for name, lines in others.items():
        path = write_lines(tmp_path / f"{name}.txt", lines)
        caplog.clear()
        load("a.txt", document="line", validation_file=[path])
        expected = ["validation: 3 of 5 texts are also in the training texts, which makes the results too good"]
        assert caplog.messages == (expected if name == "same" else [])


def test_a_cache_without_a_home_or_that_cannot_be_written(tmp_path, load, monkeypatch):
    write_lines(tmp_path / "a.txt", numbered(11))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match=rf"^XDG_CACHE_HOME: expected a folder, got the file {tmp_path}/file$"):
        load("a.txt", document="line")
    for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_entry(number):
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    with pytest.raises(
        InputError, match=r"^XDG_CACHE_HOME: expected a folder, got ~/.cache/linformer_kit without a home"
    ):
        load("a.txt", document="line")
    with pytest.raises(InputError, match=r"^train_file: no such file or folder: ~/a.txt$"):
        load_corpus(CorpusSettings(train_file=["~/a.txt"]), seed=0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    assert len(texts(load("a.txt", document="line").train)) == 10
    assert (tmp_path / "there" / "linformer_kit" / "documents").is_dir()


def test_split_is_of_the_asked_size_by_documents_and_seed_and_not_by_their_order(tmp_path, load):
    write_lines(tmp_path / "a.txt", numbered(101))
    corpus = load("a.txt", document="line", validation_fraction=0.07, seed=3)
    assert len(texts(corpus.validation)) == 7
    assert sorted(texts(corpus.train) + texts(corpus.validation)) == sorted(numbered(101))
    assert corpus.train.documents.column_names == ["text"]
    assert corpus.description == "a.txt: 94 documents to learn from, 7 for validation"
    write_lines(tmp_path / "b.txt", reversed(numbered(101)))
    reordered, other = (
        load(name, document="line", validation_fraction=0.07, seed=seed) for name, seed in (("b.txt", 3), ("a.txt", 5))
    )
    assert set(texts(reordered.validation)) == set(texts(corpus.validation)) != set(texts(other.validation))


@pytest.mark.parametrize(
    ("texts", "fraction", "held"),
    [
        (["often"] * 40 + numbered(60), 0.05, 5),
        (["often"] * 90 + numbered(10), 0.2, 10),  # all others
        ([text for text in numbered(20) for _ in range(7)], 0.05, 7),
        (["a"] * 3 + ["b"] * 4, 0.05, 3),  # none fits
        (numbered(11), 0.99, 10),  # one is left to learn from
    ],
)
def test_the_held_out_share_is_near_to_the_one_asked_for(texts, fraction, held):
    for seed in range(5):
        train, validation = split(texts, fraction=fraction, seed=seed, name="a.txt")
        assert len(validation) == held and len(train) == len(texts) - held


@given(
    rows=st.lists(st.tuples(st.integers(0, 30), st.sets(st.sampled_from("abcde"))), min_size=2, max_size=90),
    fraction=st.floats(0.01, 0.9),
    seed=st.integers(0, 3),
)
def test_a_split_of_texts_with_classes(rows, fraction, seed):
    """Equal texts are on one side, no more are held out than asked for, and every class is learnt, where possible."""
    texts, classes = [str(text) for text, _ in rows], [tuple(sorted(values)) for _, values in rows]
    assume(len(set(texts)) > 1)
    parts = split(texts, fraction=fraction, seed=seed, name="a.csv", keep=classes)
    train, validation = ([texts[index] for index in part] for part in parts)
    assert train and validation and not set(train) & set(validation) and sorted(train + validation) == sorted(texts)
    unlearnt = {value for values in classes for value in values}
    unlearnt -= {value for index in parts[0] for value in classes[index]}
    assert len(set(validation)) == 1 or (not unlearnt and len(validation) <= max(1, round(fraction * len(rows))))


def test_each_side_has_a_fingerprint_of_its_documents(tmp_path, load):
    write_json_lines(tmp_path / "a.jsonl", numbered(7))
    other = write_json_lines(tmp_path / "b.jsonl", numbered(5, "other"))
    split = [load("a.jsonl"), load("a.jsonl", seed=1), load("a.jsonl", validation_fraction=0.5)]
    whole = load("a.jsonl", validation_file=[other])
    write_json_lines(tmp_path / "b.jsonl", numbered(3, "other"))
    held_out = load("a.jsonl", validation_file=[other])
    write_json_lines(tmp_path / "a.jsonl", numbered(11))
    learnt = load("a.jsonl", validation_file=[other])
    assert whole.train.fingerprint == held_out.train.fingerprint
    assert held_out.validation.fingerprint == learnt.validation.fingerprint
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "c.txt")  # lines, and not fields of them
    corpora = [*split, whole, held_out, learnt, load("c.txt", document="line")]
    sides = {corpus.train.fingerprint for corpus in corpora} | {corpus.validation.fingerprint for corpus in corpora}
    assert len(sides) == 2 * len(corpora) - 2 and all(int(fingerprint, 16) for fingerprint in sides)
    lines = load("a.jsonl", document="line", validation_file=[other])  # a rule for files without columns
    assert lines.train.fingerprint == learnt.train.fingerprint


def test_text_that_is_fetched_again_is_the_same(tmp_path, load):
    """Contents and order of the files count (the order determines that of documents), not their times or paths."""
    write_lines(tmp_path / "there/a.txt", numbered(7))
    write_lines(tmp_path / "there/b.txt", numbered(5, "other"))
    first = load("there", document="line")
    os.utime(tmp_path / "there/a.txt", ns=(1, 1))
    (tmp_path / "there").rename(tmp_path / "elsewhere")
    again = load("elsewhere", document="line")
    assert again.train.fingerprint == first.train.fingerprint
    assert again.validation.fingerprint == first.validation.fingerprint
    (tmp_path / "elsewhere/a.txt").rename(tmp_path / "elsewhere/c.txt")
    assert load("elsewhere", document="line").train.fingerprint != first.train.fingerprint


def test_hub_data_keeps_its_own_split(tmp_path, load):
    write_json_lines(tmp_path / "hub/train.jsonl", [*numbered(7), " "], column="body")
    write_json_lines(tmp_path / "hub/validation.jsonl", numbered(3, "held out"), column="body")
    corpus = load(dataset_name=str(tmp_path / "hub"), text_column="body")
    assert sorted(texts(corpus.train)) == numbered(7) and texts(corpus.validation) == numbered(3, "held out")
    assert corpus.train.documents.column_names == ["text"]


def test_a_saved_folder_is_known_by_its_texts(tmp_path, load):
    """`datasets` gives it the same fingerprint again, and the rows that it chose for the texts before."""

    def rows(texts):
        yield from ({"text": text} for text in texts)

    def saved(train, validation):
        sides = {"train": train, "validation": validation}
        for name, side in sides.items():
            path = tmp_path / "saved" / name
            cache = str(tmp_path / f"cache {len(os.listdir(tmp_path))}")
            Dataset.from_generator(
                rows, gen_kwargs={"texts": side}, cache_dir=cache, fingerprint="0" * 16
            ).save_to_disk(path)
        (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": [*sides]}))
        corpus = load(dataset_name=str(tmp_path / "saved"))
        assert texts(corpus.train) == [text for text in train if text.strip()]
        assert texts(corpus.validation) == [text for text in validation if text.strip()]
        assert not list(tmp_path.glob("saved/**/cache*"))
        return corpus

    first, second = saved(["a", " ", "b", "c"], ["d"]), saved(["a", "b", "c", ""], ["e"])
    assert first.train.fingerprint == second.train.fingerprint
    assert first.validation.fingerprint != second.validation.fingerprint


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("One two. Three\nfour. " * 10 + "\n\n" + "Five. " * 6, "Five. " * 6),
        ("One two. Three four\n" * 20, "One two. Three four\n" * 3),
        ("One two. " * 20, "One two. " * 3),
        ("one two " * 20, "one two " * 3),
        ("x" * 100, "x" * 15),
    ],
)
def test_the_end_of_a_single_document_is_held_out(tmp_path, load, text, end):
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "copy.txt").write_text(text)
    corpus = load("a.txt", "copy.txt", validation_fraction=0.15)
    assert texts(corpus.validation) == [end] and texts(corpus.train) == [text.removesuffix(end)]
    assert corpus.description == f"a.txt copy.txt: one document, its last {len(end)} characters for validation"


@pytest.mark.parametrize(
    ("lines", "fields", "message"),
    [
        (["", "x", ""], {}, "a.txt: expected more than one document, or one whose end can be held out, got '\\nx\\n\\n'; give --validation_file"),
        ([" ", ""], {}, "a.txt: expected documents with text, got none"),
        (["x"], {"dataset_name": "x"}, "expected one of train_file and dataset_name, and dataset_config_name only with the latter"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used(tmp_path, load, lines, fields, message):
    write_lines(tmp_path / "a.txt", lines)
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        load("a.txt", **fields)
