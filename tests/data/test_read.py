"""What one document is, for each kind of file and rule; an error of one line for what cannot be read."""

from __future__ import annotations

import re

import pyarrow
import pyarrow.parquet
import pytest

from linformer_kit.data.files import find_files, standard_library
from linformer_kit.data.read import read_documents
from linformer_kit.errors import InputError

WIKITEXT = """
 = First =

 text one

 = = Deeper = =

 text two
 = Played , W =
 more

 = Ties =
 legend
 = Losses =

 more

 = Second =

 x
"""


def read(path, document="auto", column="text"):
    return list(read_documents([path], document=document, column=column))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def fails(message: str):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("file", ["\n one\n two\n\n \n\nthree\n"]),
        ("auto", ["\n one\n two\n\n \n\nthree\n"]),
        ("line", [" one", " two", "three"]),
        ("blank_line", [" one\n two", "three"]),
        ("wikitext", [" one\n two\n\n \n\nthree"]),
    ],
)
def test_rules_for_text(tmp_path, document, expected):
    assert read(write(tmp_path / "notes.txt", "\n one\n two\n\n \n\nthree\n"), document) == expected


def test_articles_start_at_headings_of_level_one_between_blank_lines(tmp_path):
    first, second = read(write(tmp_path / "wiki.txt", WIKITEXT))
    assert first.startswith(" = First =\n\n text one") and first.endswith("more")
    assert second == " = Second =\n\n x"


def test_tables(tmp_path):
    write(tmp_path / "a.csv", 'id,body\n1,"a, ""b""\nc"\n\n2,\n3,d\n')
    write(tmp_path / "a.tsv", 'id\tbody\n1\t"a" b\n2\td "\n')
    write(tmp_path / "a.jsonl", '{"body": "a\\nb"}\n\n{"body": " "}\n{"body": "d", "id": 3}\n')
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2, 3], "body": ["a", "", "d"]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.csv", column="body") == ['a, "b"\nc', "d"]
    assert read(tmp_path / "a.tsv", column="body") == ['"a" b', 'd "']
    assert read(tmp_path / "a.jsonl", column="body") == ["a\nb", "d"]
    assert read(tmp_path / "a.parquet", column="body") == ["a", "d"]


@pytest.mark.parametrize(("name", "content"), [("a.txt", "é"), ("a.csv", "text\né"), ("a.json", '{"text": "é"}')])
def test_byte_order_mark_is_not_text(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    assert read(tmp_path / name) == ["é"]


def test_files_folders_and_globs_together_give_each_file_once(tmp_path):
    for name in ["b.txt", "deep/er/a.MD", "deep/c.jsonl", "deep/picture.png", ".hidden/d.txt", "[e].txt", "[f]/f.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, "x")
    patterns = [
        str(tmp_path / pattern) for pattern in ("deep", "**/*.jsonl", "b.txt", "[e].txt", "deep/../b.txt", "[f]")
    ]
    found = find_files(patterns, field="train_file")
    assert [path.name for path in found] == ["[e].txt", "f.py", "b.txt", "c.jsonl", "a.MD"]


@pytest.mark.parametrize("folder", ["a/tests", "a"])
def test_what_is_not_the_library_is_left_out(tmp_path, monkeypatch, folder):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "site-packages" / name))
    path = tmp_path / "site-packages" / "stdlib" / folder / "x.py"
    path.parent.mkdir(parents=True)
    write(path, "x")
    assert standard_library().paths == ((path,) if folder == "a" else ())


@pytest.mark.parametrize("name", ["notes.txt", "rows.jsonl", "rows.csv"])
@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"abc\xffdef", 3),
        ("abcdé".encode()[:-1], 4),  # cut inside a character at the end
    ],
)
def test_bytes_that_are_not_utf8_are_reported_by_offset(tmp_path, name, content, offset):
    path = tmp_path / name
    before = (b'{"text": "x"}\n' if name == "rows.jsonl" else b"text\n") * 5000
    path.write_bytes(before + content)
    with fails(f"{path}: not UTF-8 at byte {len(before) + offset} (0x{content[offset]:02x}); expected UTF-8 text"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("rows.csv", "id,body\n1,x\n", ""),
        ("rows.jsonl", '{"text": "x"}\n\n{"id": 1, "body": "x"}\n', " line 3"),
    ],
)
def test_missing_column_names_those_that_exist(tmp_path, name, content, place):
    path = tmp_path / name
    path.write_text(content)
    with fails(f"{path}{place}: no column 'text' (text_column); it has 'id', 'body'"):
        read(path)


def test_a_column_of_which_there_are_two(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,id,text\nx,1,y\n")
    with fails(f"{path}: expected one column 'text' (text_column), got 2 of that name"):
        read(path)
    assert read(path, column="id") == ["1"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no.txt", "no such file or folder: {}"),
        ("book.epub", "{} has suffix '.epub'; expected one of .txt .py .md .jsonl .json .csv .tsv .parquet"),
        ("empty.txt", "{} is empty; expected text"),
    ],
)
def test_no_file_to_read(tmp_path, given, message):
    (tmp_path / "book.epub").write_text("text")
    (tmp_path / "empty.txt").touch()
    path = str(tmp_path / given)
    with fails(f"train_file: {message.format(path)}"):
        find_files([path], field="train_file")


def test_a_parquet_file_with_a_damaged_page(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["some text"] * 1000}), path)
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: expected a whole Parquet file, got .+$"):
        read(path)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "x"', "not JSON (Expecting ',' delimiter); expected one object per line"),
        ("[" * 100_000, "not JSON (maximum recursion depth exceeded"),
        ('{"text": 7}', "'text' is int; expected a string"),
        (
            r'{"text": "ab\ud800"}',
            "'text' has half a surrogate pair, U+D800, at character 2; expected whole Unicode characters",
        ),
    ],
)
def test_bad_json_line_is_named(tmp_path, line, problem):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"text": "good"}}\n{line}\n')
    with pytest.raises(InputError, match=f"^{re.escape(f'{path} line 2: {problem}')}"):
        read(path)


def test_ragged_csv_row_is_named_by_the_line_where_it_starts(tmp_path):
    path = write(tmp_path / "rows.csv", 'text,a,b\n"two\nlines",1,2\n\nx,1\n')
    with fails(f"{path} line 5: expected 3 fields as in the header, got 2"):
        read(path)


def test_open_quote_in_csv(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('text\ngood\n"open\n')
    with fails(f"{path} line 3: bad quoting (unexpected end of data); expected CSV"):
        read(path)
