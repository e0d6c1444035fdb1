"""The script for encoders beside other runtimes, at a tiny size."""

from __future__ import annotations

import pytest

from reproduce import rivals as script
from tests.reproduce.started import start
from tests.reproduce.test_linearised import tiny


@pytest.mark.e2e
def test_a_cell_alone_and_then_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "original", tiny)
    monkeypatch.setattr(script, "in_fresh_process", lambda function, *given: function(*given))
    monkeypatch.setattr(script, "LONGEST", 300)
    options = ("--architectures", "modernbert", "--ways", "torch", "optimized", "--lengths", "70", "0")
    options = (*options, "--dtypes", "float32", "int8", "--repetitions", 1)
    (record,) = start(script, tmp_path, *options, "--only", "torch/modernbert/float32/0")["records"]
    assert record["n"] == 0 and record["difference"] == 0
    records = start(script, tmp_path, *options)["records"]
    cells = [(each["way"], each["n"]) for each in records]
    assert cells == [("torch", 0), ("torch", 70), ("optimized", 70), ("optimized", 0)]
    assert all(each["difference"] < 1e-5 for each in records)
    assert "## modernbert, float32: seconds" in (tmp_path / "rivals.md").read_text()
