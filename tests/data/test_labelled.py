"""Labelled texts from files and a data set laid out as on the hub; their classes; errors and warnings."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from linformer_cli.settings import EvaluateSettings, FinetuneSettings
from linformer_kit import InputError
from linformer_kit.data.labelled import (
    Columns,
    Example,
    Labels,
    as_examples,
    labels_of,
    load_labelled,
    load_measured,
    remarks,
    sample,
)


def settings(**fields: object) -> FinetuneSettings:
    return FinetuneSettings(model="none", **fields)


def write(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def table(count: int, first: int = 0) -> str:
    return "text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(first, first + count))


def examples(*labels: object) -> list[Example]:
    rows = [(f"t line {number}", {"text": f"text {number}", "label": label}) for number, label in enumerate(labels, 2)]
    return as_examples(rows, Columns("text"))


def test_a_part_of_the_texts_is_held_out_and_equal_texts_stay_together(tmp_path):
    path = write(tmp_path / "t.csv", table(40) + table(40).split("\n", 1)[1])
    texts = load_labelled(settings(train_file=[path], validation_fraction=0.2))
    assert len(texts.train) + len(texts.validation) == 80
    assert 8 <= len(texts.validation) <= 24
    assert not {text.text for text in texts.train} & {text.text for text in texts.validation}
    again = load_labelled(settings(train_file=[path], validation_fraction=0.2))
    assert again == texts and again.fingerprint() == texts.fingerprint()
    other = [replace(texts.validation[0], text="other"), *texts.validation[1:]]
    labels = (Labels(("b", "a")), replace(texts.labels, multi_label=True))
    changed = (replace(texts, validation=other), *(replace(texts, labels=each) for each in labels))
    assert len({each.fingerprint() for each in (texts, *changed)}) == 4, "a resumed run sees what was changed"


def test_a_text_of_each_class_is_learnt(tmp_path, caplog):
    """Also of a class with one text, of a class of few, and of those that only lists of several have."""
    rows = [f"text {n},{'ab'[n % 2]}" for n in range(200)] + [f"rare {n},r{n}" for n in range(9)]
    path = write(tmp_path / "t.csv", "\n".join(["text,label", *rows]))
    fields = {"train_file": [path], "validation_fraction": 0.5}
    for few, lost in ((None, False), (11, False), (10, True)):
        caplog.clear()
        texts = load_labelled(settings(**fields, max_train_samples=few))
        assert (len({text.values for text in texts.train}) < 11) == lost
        assert ("no text is left of the classes" in caplog.text) == lost
        assert len(texts.train) == (few or len(texts.train)) and len(texts.validation) > 90
    several = examples(*[["a"]] * 30, ["a", "b"], [])
    assert {value for text in sample(several, 2) for value in text.values} == {"a", "b"}


def test_doubtful_names_of_classes_are_pointed_out():
    found = remarks(["unittest", "Unittest", "N/A", "TRUE", "true", "True", "None of it"])
    assert found["Unittest"] == "differs from 'unittest' in capitals alone"
    assert found["TRUE"] == "differs from 'true', 'True' in capitals alone"
    assert set(found) == {"unittest", "Unittest", "N/A", "TRUE", "true", "True"}


def test_a_data_set_as_on_the_hub(tmp_path):
    folder = str(tmp_path / "hub")
    write(tmp_path / "hub" / "train.csv", table(20))
    texts = load_labelled(settings(dataset_name=folder))
    assert texts.labels.names == ("a", "b")
    assert 0 < len(texts.validation) < 20 == len(texts.train) + len(texts.validation)
    write(tmp_path / "hub" / "test.csv", table(5, 20))
    write(tmp_path / "hub" / "validation.csv", table(6, 30))
    texts = load_labelled(settings(dataset_name=folder))
    assert (len(texts.train), len(texts.validation)) == (20, 6)
    asked = EvaluateSettings(model="none", dataset_name=folder, split="test")
    assert len(load_measured(asked, Columns("text"))[0]) == 5
    with pytest.raises(InputError, match=r"no column 'body' \(text_column\); it has 'text', 'label'$"):
        load_labelled(settings(dataset_name=folder, text_column="body"))


def test_classes_of_the_hub_have_the_names_of_the_data_set(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    for split, classes in (("train", [0, 1]), ("test", [-1])):  # of which no classes are published
        rows = {"text": [f"{split} {number}" for number in classes], "label": classes}
        Dataset.from_dict(rows, features).to_parquet(tmp_path / "hub" / f"{split}.parquet")
    assert load_labelled(settings(dataset_name=str(tmp_path / "hub"))).labels.names == ("neg", "pos")
    asked = EvaluateSettings(model="none", dataset_name=str(tmp_path / "hub"), split="test")
    with pytest.raises(InputError, match=r"got 1 of 1 rows without one: .*hub test row 1; "):
        load_measured(asked, Columns("text"))


TWICE = "text_column, text_pair_column, label_column: expected different columns, got ['label', 'label']"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "expected one of train_file and dataset_name, got none"),
        ({"train_file": ["x"], "dataset_name": "x"}, "expected one of train_file and dataset_name, got both"),
        ({"dataset_name": "x", "validation_file": ["y"]}, "validation_file: expected none with dataset_name, got ['y']"),
        ({"train_file": ["t.csv"], "text_column": "label"}, TWICE),
        ({"train_file": ["t.csv"]}, "train_file t.csv: expected texts, got none"),
    ],
)  # fmt: skip
def test_settings_and_files_that_cannot_be_used(tmp_path, monkeypatch, fields, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.csv", "text,label\n")
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        load_labelled(settings(**fields))


def test_texts_in_both_parts_give_a_warning_and_an_unknown_class_an_error(tmp_path, caplog):
    path = write(tmp_path / "t.csv", table(4))
    held_out = write(tmp_path / "v.csv", "text,label\ntext 0,a\ntext 1,a\nnew,a\n")
    with caplog.at_level(logging.WARNING):
        texts = load_labelled(settings(train_file=[path], validation_file=[held_out]))
    assert len(texts.train) == 4 and len(texts.validation) == 3
    told = "validation: 2 of 3 texts are also in the training texts, which makes the results too good; the first: "
    assert f"{told}{held_out} line 2" in caplog.text
    caplog.clear()
    asked = EvaluateSettings(model="none", train_file=[path], validation_file=[held_out])
    with caplog.at_level(logging.WARNING):
        load_measured(asked, Columns("text"))
    assert f"{told}{held_out} line 2" in caplog.text
    write(tmp_path / "v.csv", "text,label\nnew,c\n")
    with pytest.raises(InputError, match=r"v.csv line 2: 'label' is 'c'; expected one of 'a', 'b'$"):
        load_labelled(settings(train_file=[path], validation_file=[held_out]))


@pytest.mark.parametrize(
    ("values", "names", "targets"),
    [
        (["10", "9", "9"], ("9", "10"), [1, 0, 0]),
        (["-1", 1, "0"], ("-1", "0", "1"), [0, 2, 1]),
        (["1.0", "0", 1.0, "0.0"], ("0", "1"), [1, 0, 1, 0]),
        (["1.0", "v1.1", 1], ("1", "v1.1"), [0, 1, 0]),
        (["9" * 5000, "1"], ("1", "9" * 5000), [1, 0]),
        (["01", "1", " [UNK]", "(other)", "f(x, y)"], ("(other)", "01", "1", "[UNK]", "f(x, y)"), [1, 2, 3, 0, 4]),
        (["cafe\u0301", "caf\u00e9", "tea\u200b", "tea"], ("caf\u00e9", "tea"), [0, 0, 1, 1]),
        (["a\u00a0 b", "a b", "c"], ("a b", "c"), [0, 0, 1]),
        ([["a", "b"], [], ["b", "b"]], ("a", "b"), [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]),
    ],
)
def test_classes_are_numbered_in_their_order(values, names, targets):
    texts = examples(*values)
    labels = labels_of(texts, "label")
    assert labels.names == names and labels.multi_label == isinstance(values[0], list)
    assert [labels.target(text, column="label") for text in texts] == targets


@pytest.mark.parametrize("missing", [None, float("nan"), "nan", " ", "<NA>"])
def test_rows_without_a_class_are_counted_and_named(missing, caplog):
    rows = [(f"t line {n}", {"text": "x", "label": missing if n % 2 else "a"}) for n in range(2, 12)]
    got = "label_column 'label': expected a class in each row, got 5 of 10 rows without one: t line 3, t line 5, t line 7, …"
    with pytest.raises(InputError, match=f"^{re.escape(got)}; --skip_unlabelled leaves them out$"):
        as_examples(rows, Columns("text"))
    assert len(as_examples(rows, Columns("text"), skip_unlabelled=True)) == 5
    assert "left out 5 of 10 rows without one: t line 3, t line 5, t line 7, …" in caplog.text


FRACTIONS = (1.5, "0.73", "-.5", "1,5", "1e-05", "2.5E+3")
PRINTED = ("['a', 'b']", "('a',)", "{a,b}", "[]", "set()", "array(['a'], dtype=object)", "frozenset({'a'})", '{"a": 1}')
VALUES = ("np.str_('pos')", "b'pos'", "tensor(1, device='cuda:0')", "np.True_", 'b"x"')
EXPECTED = "label_column 'label': expected"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([["a", "nan"]], "t line 2: no class in 'label'; expected one"),
        *((["a", value], f"t line 3: 'label' is {value!r}, a value as a library prints it; expected the class itself") for value in VALUES),
        (["a", True, {}], "t line 4: 'label' is dict; expected a class, as text or a whole number"),
        *((["a", value], f"t line 3: 'label' is {value}, a number with a fraction; expected a class, as text or a whole") for value in FRACTIONS),
        (["a", ["b"]], "t line 3: 'label' is a list; expected one class as in t line 2"),
        ([[0, 1], [1, 0, 1]], "t line 3: 'label' is [1, 0, 1], as if a 0 or 1 stood for each class; expected the names"),
        (["a", "[1 0\n 1]"], "t line 3: 'label' is '[1 0\\n 1]', a list as text; expected one class"),
        ([[1, 0], [0, 1], [1, 0]], "t line 2: 'label' is ['1', '0'], as if a 0 or 1 stood for each class"),
        ([[True, False]], "t line 2: 'label' is ['True', 'False'], as if a 0 or 1 stood for each class"),
        *(([value], f"t line 2: 'label' is {value!r}, a list as text; expected one class") for value in PRINTED),
        (["a", "a"], f"{EXPECTED} two or more classes, got only 'a' in 2 rows"),
        ([["a", "b"], ["b", "a"]], f"{EXPECTED} two or more classes, got only 'a', 'b' in 2 rows"),
        ([[], []], f"{EXPECTED} two or more classes, got none in 2 rows"),
        (map(str, range(11)), f"{EXPECTED} classes, got 11 different values in 11 rows"),
        (map(str, [*range(99), 98, 97]), f"{EXPECTED} classes, got 99 different values in 101 rows"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_used_are_named(values, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        labels_of(examples(*values), "label")


@pytest.mark.parametrize(
    ("names", "value", "found"),
    [
        (("no", "yes"), "2", "t line 2: 'label' is '2'; expected one of 'no', 'yes'"),
        ([f"c{number}" for number in range(11)], "0", "'c9', …"),
        (("cafe\u0301", "1.0"), "caf\u00e9", 0),
        (("cafe\u0301", "1.0"), "cafe\u0301", 0),
        (("cafe\u0301", "1.0"), "1", 1),
    ],
)
def test_classes_of_a_model_are_compared_as_those_of_a_file(names, value, found):
    """An unknown one names those that are known."""
    labels, (example,) = Labels(tuple(names)), examples(value)
    if isinstance(found, int):
        assert labels.target(example, column="label") == found
        return
    with pytest.raises(InputError, match=f"{re.escape(found)}$"):
        labels.target(example, column="label")


def test_joined_classes_and_empty_texts_give_a_warning(tmp_path, caplog):
    rows = ["one,a|b", ",a", "two,b", "three,Arts; crafts", " ,a"]
    path = write(tmp_path / "t.csv", "\n".join(["text,label", *rows]))
    held_out = write(tmp_path / "v.csv", "text,label\nnew,a\n")
    with caplog.at_level(logging.WARNING):
        load_labelled(settings(train_file=[path], validation_file=[held_out]))
    assert [record.getMessage() for record in caplog.records] == [
        f"train: 2 of 5 texts are empty; the first: {path} line 3",
        "label_column 'label': 'a|b' are taken for one class each; if a text may have several classes, give lists in JSON "
        "Lines or Parquet",
    ]
    pairs = write(tmp_path / "p.csv", "text,other,label\nx,,a\n")
    asked = EvaluateSettings(model="none", validation_file=[pairs], text_pair_column="other")
    with caplog.at_level(logging.WARNING):
        load_measured(asked, Columns("text"))
    assert f"validation: 1 of 1 texts are empty; the first: {pairs} line 2" in caplog.text
