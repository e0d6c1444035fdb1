"""Rows as labelled texts: classes, and the error of one line for each unusable row."""

from __future__ import annotations

import re

import pytest

from linformer_kit import InputError
from linformer_kit.data.examples import Columns, Example, Labels, as_examples, labels_of

COLUMNS = Columns("text")


def rows(*labels: object) -> list[tuple[str, dict]]:
    return [(f"t line {number}", {"text": f"text {number}", "label": label}) for number, label in enumerate(labels, 2)]


def examples(*labels: object, columns: Columns = COLUMNS) -> list[Example]:
    return as_examples(rows(*labels), columns)


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (["10", "9", "9"], ("9", "10")),
        (["-1", "1", "0"], ("-1", "0", "1")),
        (["1.0", "0", "1", "0.0"], ("0", "1")),
        (["1.0", "1.1", "2.0"], ("1.0", "1.1", "2.0")),
        (["9" * 5000, "1"], ("1", "9" * 5000)),
        (["01", "1", "2", "02"], ("01", "02", "1", "2")),
    ],
)
def test_classes_are_numbered_in_their_order(found, names):
    texts = examples(*found)
    labels = labels_of(texts, "label")
    assert labels.names == names and not labels.multi_label
    given = [str(x).strip() for x in found]
    assert [labels.names[labels.target(text, column="label")] for text in texts] == [
        x if x in names else x.removesuffix(".0") for x in given
    ]


def test_several_classes_as_lists_or_separated():
    for texts in (
        examples(["a", "b"], [], ["b", "b"]),
        examples("a|b", "", "b | b", columns=Columns("text", label_separator="|")),
    ):
        labels = labels_of(texts, "label")
        assert labels.multi_label and labels.names == ("a", "b")
        assert [labels.target(text, column="label") for text in texts] == [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (["a", float("nan")], "t line 3: no class in 'label'; expected one"),
        (
            ["a", "\ud800"],
            "t line 3: 'label' has half a surrogate pair, U+D800, at character 0; expected whole Unicode characters",
        ),
        (["a", ["b"]], "t line 3: 'label' is a list; expected one class as in t line 2"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(found, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        examples(*found)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            [[0, 1], [1, 0, 1]],
            "t line 3: 'label' is [1, 0, 1], as if a 0 or 1 stood for each class; expected the names",
        ),
        (["a", "[1 0\n 1]"], r"t line 3: 'label' is '[1 0\n 1]', a list as text"),
    ],
)
def test_lists_that_are_no_lists_of_classes(found, message):
    for columns in (COLUMNS, Columns("text", label_separator=",")):
        with pytest.raises(InputError, match=f"^{re.escape(message)}"):
            examples(*found, columns=columns)


@pytest.mark.parametrize("name", ["[UNK]", "{x}", "[a, b]", "(1)"])
def test_names_in_brackets_are_classes(name):
    assert examples(name)[0].values == (name,)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (["a", "a"], "label_column 'label': expected two or more classes, got only 'a' in 2 rows"),
        ([str(number) for number in range(11)], "label_column 'label': expected classes, got another value in each of 11 rows"),
    ],
)  # fmt: skip
def test_there_must_be_something_to_tell_apart(found, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        labels_of(examples(*found), "label")


def test_a_text_is_text():
    with pytest.raises(InputError, match=r"^t line 2: 'text' is int; expected a string$"):
        as_examples([("t line 2", {"text": 3, "label": "a"})], COLUMNS)
    pair = Columns("text", "other")
    with pytest.raises(InputError, match=r"^t line 2: 'other' is NoneType; expected a string$"):
        as_examples([("t line 2", {"text": "a", "other": None, "label": "a"})], pair)


def test_an_unknown_class_names_those_that_are_known():
    labels = Labels(("no", "yes"), numbered=("no", "yes"))
    assert [labels.number(value, source="", column="") for value in ("yes", "0", "1")] == [1, 0, 1]
    with pytest.raises(InputError, match=r"^t line 9: 'label' is '2'; expected one of 'no', 'yes', or 0 to 1$"):
        labels.number("2", source="t line 9", column="label")
    many = Labels(tuple(f"c{number}" for number in range(11)))
    with pytest.raises(InputError, match=r"'c9', …$"):
        many.number("0", source="t line 9", column="label")
