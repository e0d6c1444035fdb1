"""Helpers of all reports."""

from __future__ import annotations

import json
import math

from linformer_kit.report.base import write_json


def test_lists_of_numbers_stand_on_a_line_and_strings_stay(tmp_path):
    results = {"a": [1, 2.5, None], "b": [[1], [2, math.nan]], "c": ["[ 1,  2]\n", "x"], "d": {"e": []}, "f": "[\n 1 ]"}
    write_json(results, tmp_path / "results.json")
    text = (tmp_path / "results.json").read_text()
    assert json.loads(text) == {**results, "b": [[1], [2, None]]}
    assert '"a": [1, 2.5, null],\n' in text and "    [2, null]\n" in text
