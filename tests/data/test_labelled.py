"""Labelled texts from tasks, files and a data set laid out as on the hub; what is refused and what is said."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path

import pytest

from linformer_kit import InputError
from linformer_kit.data.examples import Columns, Labels
from linformer_kit.data.labelled import TASKS, columns_of_task, load_labelled, load_measured
from linformer_kit.settings import EvaluateSettings, FinetuneSettings
from tests.conftest import write_tasks


def settings(**fields: object) -> FinetuneSettings:
    return FinetuneSettings(model="none", **fields)


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def table(count: int, first: int = 0) -> str:
    return "text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(first, first + count))


@pytest.fixture
def local(tmp_path) -> Path:
    return write_tasks(tmp_path)


@pytest.mark.parametrize("task", TASKS)
def test_tasks_are_read_as_they_are_distributed(local, task):
    found = load_labelled(settings(task=task, data_dir=str(local / task if task == "sst2" else local)))
    assert len(found.train) == len(found.validation) == 4
    assert found.labels.names == TASKS[task].labels
    assert [found.labels.target(text, column="") for text in found.train] == [0, 1, 0, 1]
    assert (found.train[0].text_pair is None) == (task in ("sst2", "imdb"))
    assert found.metrics == (("accuracy", "f1") if task == "qqp" else ("accuracy",))
    assert found.train[1].text in ("it 's \"train.tsv 1", "train.jsonl 1", "what ?")


def test_only_a_task_known_for_ragged_rows_leaves_them_out(local, caplog):
    load_labelled(settings(task="qqp", data_dir=str(local)))
    told = "skipped rows with another number of fields than the header: 1; the first: "
    assert f"{told}{local / 'qqp' / 'train.tsv'} line 6" in caplog.text
    with (local / "qnli" / "dev.tsv").open("a") as file:
        file.write("ragged\trow\n")
    with pytest.raises(InputError, match=r"dev.tsv line 6: expected 4 fields as in the header, got 2$"):
        load_labelled(settings(task="qnli", data_dir=str(local)))


@pytest.mark.parametrize("task", ["imdb", "qnli"])
def test_a_classifier_of_a_task_takes_its_own_files_without_a_flag(local, task, tmp_path):
    """With numeric labels, in the columns of these files, as in fine-tuning from data_dir."""
    known = TASKS[task]
    columns = columns_of_task(known, in_files=True)
    of_task = load_measured(EvaluateSettings(model="", task=task, data_dir=str(local)), Labels(known.labels), columns)
    own_file = EvaluateSettings(model="", validation_file=[str(local / task / known.validation_file)])
    examples, labels, found = load_measured(own_file, Labels(known.labels), columns)
    assert examples == of_task[0] and found == of_task[2]
    assert [labels.target(example, column=found.label) for example in examples] == [0, 1, 0, 1]
    named = tmp_path / "named.tsv"
    texts = [known.text_column, *filter(None, [known.text_pair_column]), columns.label]
    named.write_text("\n".join("\t".join(row) for row in (texts, [*texts[:-1], known.labels[1]])) + "\n")
    examples, labels, _ = load_measured(EvaluateSettings(model="", validation_file=[str(named)]), labels, columns)
    assert labels.target(examples[0], column="") == 1


def test_a_part_of_the_texts_is_held_out_and_equal_texts_stay_together(tmp_path):
    path = write(tmp_path / "t.csv", table(40) + table(40).split("\n", 1)[1])
    found = load_labelled(settings(train_file=[path], validation_fraction=0.2))
    assert len(found.train) + len(found.validation) == 80
    assert 8 <= len(found.validation) <= 24
    assert not {text.text for text in found.train} & {text.text for text in found.validation}
    again = load_labelled(settings(train_file=[path], validation_fraction=0.2))
    other = load_labelled(settings(train_file=[path], validation_fraction=0.2, split_seed=1))
    assert again == found and other != found


def test_a_data_set_as_on_the_hub(tmp_path):
    write(tmp_path / "train.csv", table(20))
    found = load_labelled(settings(dataset_name=str(tmp_path)))
    assert found.labels.names == ("a", "b")
    assert 0 < len(found.validation) < 20 == len(found.train) + len(found.validation)
    write(tmp_path / "test.csv", table(5, 20))
    write(tmp_path / "validation.csv", table(6, 30))
    found = load_labelled(settings(dataset_name=str(tmp_path)))
    assert (len(found.train), len(found.validation)) == (20, 6)
    with pytest.raises(InputError, match=r"no column 'body' \(text_column\); it has 'text', 'label'$"):
        load_labelled(settings(dataset_name=str(tmp_path), text_column="body"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "expected one of task, train_file and dataset_name, got none"),
        ({"task": "sst2", "text_column": "a"}, "text_column: expected none with --task, which knows its own, got 'a'"),
        ({"task": "sst2", "data_dir": "/none/there"}, "data_dir: expected /none/there/sst2/train.tsv or /none/there/train.tsv, got neither"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(fields, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        load_labelled(settings(**fields))


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("t.csv", "text,label\n", {}, "train_file {}: expected texts, got none"),
        ("t.csv", "text,label,label\na,b,c\n", {}, "{}: expected one column 'label' (label_column), got 2 of that name"),
        ("t.csv", "text,label\na,b\na,c\n", {}, "train_file: expected at least 2 different texts to hold some out, got 1; give --validation_file"),
        ("t.jsonl", '{"text": "a"}\n', {}, "{} line 1: no column 'label' (label_column); it has 'text'"),
        ("t.csv", "text,label\na,b\n", {"text_column": "label"}, "text_column, text_pair_column, label_column: expected different columns, got ['label', 'label']"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used(tmp_path, name, content, fields, message):
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=f"^{re.escape(message.replace('{}', path))}$"):
        load_labelled(settings(train_file=[path], **fields))


def test_what_is_odd_is_said(tmp_path, caplog):
    path = write(tmp_path / "t.csv", table(4) + ' ,a\n"",b\n')
    held_out = write(tmp_path / "v.csv", "text,label\ntext 0,a\ntext 1,a\nnew,a\n")
    with caplog.at_level(logging.WARNING):
        found = load_labelled(settings(train_file=[path], validation_file=[held_out]))
    assert len(found.train) == 6 and len(found.validation) == 3
    assert f"empty texts: 2, the first {path} line 6" in caplog.text
    told = "validation: 2 of 3 texts are also in the training texts, which makes the metrics too high; the first: "
    assert f"{told}{held_out} line 2" in caplog.text
    assert "validation: no text has class 'b'" in caplog.text


def test_a_classifier_is_measured_with_its_own_classes(tmp_path):
    path = write(tmp_path / "v.csv", "body,class\nx,yes\ny,no\n")
    asked = EvaluateSettings(model="none", validation_file=[path], text_column="body", label_column="class")
    columns = Columns("text")
    examples, labels, where = load_measured(asked, Labels(("no", "yes")), columns)
    assert [labels.target(example, column="class") for example in examples] == [1, 0]
    assert (where.text, where.label) == ("body", "class")
    with pytest.raises(InputError, match=r"line 2: 'class' is 'yes'; expected one of 'a', 'b'$"):
        load_measured(asked, Labels(("a", "b")), columns)
    numbers = dataclasses.replace(asked, validation_file=[write(tmp_path / "n.csv", "body,class\nx,1\ny,0\n")])
    with pytest.raises(InputError, match=r"line 2: 'class' is '1'; expected one of 'no', 'yes'$"):
        load_measured(numbers, Labels(("no", "yes")), columns)


def test_another_split_of_the_hub(tmp_path):
    (tmp_path / "hub").mkdir()
    write(tmp_path / "hub" / "train.csv", table(6))
    write(tmp_path / "hub" / "test.csv", table(4))
    asked = EvaluateSettings(model="none", dataset_name=str(tmp_path / "hub"), split="test")
    assert len(load_measured(asked, Labels(("a", "b")), Columns("text"))[0]) == 4
    with pytest.raises(InputError, match=r"^split: expected none with validation_file, got test$"):
        files = EvaluateSettings(model="none", validation_file=["x"], split="test")
        load_measured(files, Labels(("a", "b")), Columns("text"))
