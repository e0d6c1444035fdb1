"""What one row and one document is, for each kind of file and rule; an error of one line for what cannot be read."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from linformer_cli.errors import InputError
from linformer_kit.data.files import find_files, text_files
from linformer_kit.data.read import TextColumns, load_hub, read_documents, read_inputs

NOTES = "\n one\n two\n\n \n\nthree\n"


def read(path, document="file", column="text"):
    return list(read_documents([path], document=document, column=column))


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_text_file_is_one_document_or_one_for_each_line(tmp_path):
    """Blank ones are no text to train on, but are there where each has an output."""
    path = write(tmp_path / "notes.txt", NOTES)
    assert read(path) == [NOTES] and read(path, "line") == [" one", " two", "three"]
    lines = [text for text, _ in read_inputs([path], TextColumns("text"), document="line")]
    assert lines == ["", " one", " two", "", " ", "", "three"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", 'id,text\n1,"a, ""b""\nc"\n\n2,\n3,NA\n', ['a, "b"\nc', "NA"]),
        ("a.csv", b'text,label\r"a\r\nb",1\rc\x00d,2\r', ["a\r\nb", "c\x00d"]),
        ("a.csv", "text\n" + "x" * 200_000, ["x" * 200_000]),
        ("a.tsv", 'id\ttext\n1\t"a" b\n2\td "\n', ['"a" b', 'd "']),
        ("a.jsonl", '{"text": "a\\nb"}\n\n{"text": " "}\n{"text": "2020-01-01", "id": 3}\n', ["a\nb", "2020-01-01"]),
        ("a.json", b'\xef\xbb\xbf{"text": "e"}', ["e"]),
        ("a.csv", b"\xef\xbb\xbftext\ne", ["e"]),
        ("a.csv", 'id;text\n1,5;"a; ""b"""\n2;c, d\n', ['a; "b"', "c, d"]),
        ("a.csv", '"id"\t"text"\n1\t"a\nb"\n', ["a\nb"]),
        ("a.csv", b"\xef\xbb\xbfid|text\n1|e", ["e"]),
        ("a.tsv", 'id,text\n1,"a, b"\n', ["a, b"]),
        ("stdin", 'id;text\n1;"a\nb"\n', ["a\nb"]),
        ("stdin", b"\xef\xbb\xbftext\ne", ["e"]),
        ("stdin", '\ufeff{"text": "a\\nb"}\n', ["a\nb"]),
        ("stdin", "a text, or id\n{two}\n", ["a text, or id\n{two}\n"]),
        ("a.txt", b"\xef\xbb\xbfe", ["e"]),
    ],
)  # fmt: skip
def test_tables_and_odd_bytes(tmp_path, name, content, expected):
    assert read(write(tmp_path / name, content)) == expected


def test_quotes_of_csv_in_a_tsv_are_named(tmp_path, caplog):
    """They stay, as in GLUE; what has none inside may be a quotation."""
    content = 'id\ttext\n1\t"say ""hi"""\n2\t"quoted"\n3\t"a" and ""b""\n4\t""\n'
    path = write(tmp_path / "a.tsv", content)
    assert read(path) == ['"say ""hi"""', '"quoted"', '"a" and ""b""', '""']
    assert read(write(tmp_path / "a.csv", content.partition("3")[0])) == ['say "hi"', "quoted"]
    said = [message for message in caplog.messages if "quotes" in message]
    assert said == [f'{path}: quotes as in "say ""hi""" are read as text (rows: 1); rename it to .csv to remove them']


def test_parquet_whole_or_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    texts = ["a", "", *["some text"] * 1000]
    pyarrow.parquet.write_table(pyarrow.table({"id": range(1002), "text": texts}), path)
    content = bytearray(path.read_bytes())
    assert read(path) == ["a", *texts[2:]]
    damaged = bytearray(content)
    damaged[4:-400] = b"\xff" * (len(content) - 404)
    for other in (damaged, content[:-9], b"text"):
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: expected a whole Parquet file, got .+$"):
            read(write(path, bytes(other)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"abc\xffdef", "{} line 1: expected UTF-8 text, got the byte 0xff; save it as UTF-8 (in Excel: CSV UTF-8)"),
        ("a.csv", b"text\n" + "é\n".encode() * 9000 + b"caf\xe9\n", "{} line 9002: expected UTF-8 text, got the byte 0xe9; save it as UTF-8 (in Excel: CSV UTF-8)"),
        ("a.csv", "body;id\nx;1\n", "{}: no column 'text' (text_column); it has 'body', 'id'"),
        ("a.csv", "text;id\nx;1;y\n", "{} line 2: expected 2 fields as in the header, got 3"),
        ("a.csv", "id,body\n1,x\n", "{}: no column 'text' (text_column); it has 'id', 'body'"),
        ("a.csv", "text,id,text\nx,1,y\n", "{}: expected one column 'text' (text_column), got 2 of that name"),
        ("a.csv", "text,id\nx,1,y\n", "{} line 2: expected 2 fields as in the header, got 3"),
        ("a.csv", 'text,a,b\n"two\nlines",1,2\n\nx,1\n', "{} line 5: expected 3 fields as in the header, got 2"),
        ("a.csv", 'text\ngood\n"open\n', "{} line 3: bad quoting (unexpected end of data); expected CSV"),
        ("a.jsonl", '{"text": "x"}\n\n{"id": 1}\n', "{} line 3: no column 'text' (text_column); it has 'id'"),
        ("a.jsonl", '{"text": "x"', "{} line 1: not JSON (Expecting ',' delimiter); expected one object per line"),
        ("a.jsonl", "[1]", "{} line 1: JSON list; expected one object per line"),
        ("a.jsonl", '{"text": 7}', "{} line 1: 'text' is int; expected a string"),
        ("a.jsonl", r'{"text": "ab\ud800"}', "{} line 1: 'text' has half a surrogate pair at character 2"),
        ("a.jsonl", '{"text": "x", "text": "y"}', "{} line 1: not JSON (a name occurs twice among ['text', 'text']); expected one object per line"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=f"^{re.escape(message.format(path))}$"):
        read(path)


def test_a_pipe_is_read_as_a_file(tmp_path, monkeypatch):
    """As often as asked for, by its suffix if it has one, else as what fits its first line; a device is no pipe.

    What it held is removed at exit.
    """
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", at_exit.append)

    def piped(content: bytes) -> str:
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        return f"/dev/fd/{reader}"

    table, lines = b"text,label\nx,a\n", b"one\ntwo\n"
    parquet = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"]}), parquet)
    for content, expected in ((table, ["x"]), (parquet.read_bytes(), ["x"]), (lines, ["one", "two"])):
        (path,) = find_files([piped(content)], field="file")
        assert read(path, "line") == read(path, "line") == expected
        at_exit.pop()()
        assert not path.parent.exists()
    (tmp_path / "stdin").symlink_to(write(tmp_path / "a.csv", table))
    assert find_files([str(tmp_path / "stdin")], field="file") == (tmp_path / "a.csv",)
    (tmp_path / "other").symlink_to(write(tmp_path / "without", table))
    assert read(*find_files([str(tmp_path / "other")], field="file")) == ["x"]
    with pytest.raises(InputError, match="file: no such file or folder: /dev/zero"):
        find_files(["/dev/zero"], field="file")
    with pytest.raises(InputError, match=r"^file: /dev/fd/\d+ is empty; expected text"):
        find_files([piped(b"")], field="file")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"^file: expected a file, which all processes can read, got /dev/fd/"):
        find_files([piped(table)], field="file")


def test_a_named_pipe_keeps_its_suffix(tmp_path):
    os.mkfifo(tmp_path / "q.csv")
    threading.Thread(target=(tmp_path / "q.csv").write_text, args=["text\nx\n"], daemon=True).start()
    (path,) = find_files([str(tmp_path / "q.csv")], field="file")
    assert path.name == "q.csv" and path.parent != tmp_path and read(path) == ["x"]


def test_files_are_in_the_order_of_their_patterns(tmp_path, caplog):
    """Sorted within a folder or glob; to train on, each once, which is said, else as often as named."""
    for name in ["b.txt", "deep/er/a.MD", "deep/c.jsonl", "deep/picture.png", ".hidden/d.txt", "[e].txt", "[f]/f.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, "x")
    names = ("deep", "**/*.jsonl", "b.txt", "[e].txt", "deep/../b.txt", "[f]")
    patterns = [str(tmp_path / name) for name in names]
    caplog.set_level("INFO")
    paths = find_files(patterns, field="train_file")
    assert [path.name for path in paths] == ["c.jsonl", "a.MD", "b.txt", "[e].txt", "f.py"]
    assert caplog.messages == ["train_file: 2 files are named more than once, and read once"]
    paths = find_files(patterns, field="file", repeated=True)
    assert [path.name for path in paths] == ["c.jsonl", "a.MD", "c.jsonl", "b.txt", "[e].txt", "b.txt", "f.py"]
    assert (
        len(find_files([str(tmp_path / "**/**/*.jsonl")], field="file", repeated=True)) == 1
        and len(caplog.messages) == 1
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no.txt", "no such file or folder: {}"),
        ("*.csv", "{} matches no file; expected files that end in .txt .py .md .jsonl .json .csv .tsv .parquet"),
        ("book.epub", "{} has suffix '.epub'; expected one of .txt .py .md .jsonl .json .csv .tsv .parquet"),
        ("empty.txt", "{} is empty; expected text"),
    ],
)
def test_no_file_to_read(tmp_path, given, message):
    write(tmp_path / "book.epub", "text")
    (tmp_path / "empty.txt").touch()
    path = str(tmp_path / given)
    with pytest.raises(InputError, match=f"^train_file: {re.escape(message.format(path))}$"):
        find_files([path], field="train_file")


def test_a_folder_of_save_to_disk_is_a_data_set(tmp_path):
    rows = datasets.Dataset.from_dict({"text": ["x", "y"]})
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(tmp_path / "some")
    assert load_hub(str(tmp_path / "one"), None)["train"]["text"][:] == ["x", "y"]
    assert set(load_hub(str(tmp_path / "some"), None)) == {"train", "test"}
    for name in ("one", "some", ""):
        expected = "expected files of texts, or the folder as dataset_name, got"
        with pytest.raises(InputError, match=rf"^file: {expected} \S+, a data set of `save_to_disk`$"):
            find_files([str(tmp_path / name)], field="file")


@pytest.mark.parametrize("folder", ["a/tests", "a"])
def test_what_is_not_the_library_is_left_out(tmp_path, monkeypatch, folder):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "site-packages" / name))
    path = tmp_path / "site-packages" / "stdlib" / folder / "x.py"
    path.parent.mkdir(parents=True)
    write(path, "x")
    assert text_files(None, field="train_file").paths == ((path,) if folder == "a" else ())
