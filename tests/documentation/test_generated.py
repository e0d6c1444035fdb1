"""Tables of the pages that are made of several results, or of code."""

from __future__ import annotations

import dataclasses
import json
import re

from transformers import PreTrainedConfig

from linformer_kit import LinformerConfig
from tests.documentation.pages import PAGES, ROOT

_QUALITY = "documents-minilm-4096_xeon-2-cores_202611"
_TIMES = {
    "documents-minilm-float32_zen4-avx2-2-cores_202611": "float32",
    "documents-minilm-bfloat16_xeon-2-cores_202611": "bfloat16",
}
_METHODS = {
    "truncated, first 512 tokens only": "cut",
    "pieces, average over pieces of 512": "pieces",
    "full attention over all tokens": "stretched",
    "linear, not trained": "linearised",
    "linear with adapter": "student",
}


def _records(folder: str, name: str, measured: str) -> list[dict]:
    content = json.loads((ROOT / "benchmarks" / folder / "documents.json").read_text(encoding="utf-8"))
    return [each for each in content["records"] if (each["name"], each["measured"]) == (name, measured)]


def _row(title: str, name: str) -> str:
    times = [
        each["median_s"]
        for folder, precision in _TIMES.items()
        for each in _records(folder, name, "cost")
        if each["n"] == 4096 and each["precision"] == precision
    ]
    late = [each["recall@1"] for each in _records(_QUALITY, name, "late_sentence") if each["position"] != "0–512"]
    (hidden,) = (each["recall@1"] for each in _records(_QUALITY, name, "passkey") if each["n"] == 4096)
    cells = [f"{1e3 * seconds:,.0f} ms" for seconds in times]
    cells += [f"{share:.1%}" for share in (sum(late) / len(late), hidden)]
    return f"| {title} | {' | '.join(cells)} |"


def test_the_table_of_minilm_is_that_of_the_results():
    lines = PAGES["linearize.md"].read_text(encoding="utf-8").splitlines()
    shown = [line for line in lines if line.startswith("|") and "%" in line]
    assert shown == [_row(title, name) for title, name in _METHODS.items()]


def test_times_saved_are_those_of_the_results():
    results = {
        "CPU with AVX-512, bfloat16": "forward-bfloat16_epyc-2-cores_202611",
        "CPU with AVX2, float32": "forward-and-training-float32_zen3-2-cores_202611",
        "H100, bfloat16, PyTorch 2.11": "table3_h100_202611",
    }
    table = re.search(r"<!-- times saved at k 128 -->(.*?)<!-- end -->", PAGES["speed.md"].read_text("utf-8"), re.S)
    lengths = [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", table[1].strip().splitlines()[0])]
    rows = re.findall(r"^\| (\w.*) \| (forward|training) \| (.*) \|$", table[1], re.M)
    assert len(rows) == 5
    for machine, mode, cells in rows:
        path = ROOT / "benchmarks" / results[machine] / "table3_figure2.json"
        times = {
            (each["encoder"], each["k"], each["n"]): each["median_s"]
            for each in json.loads(path.read_text(encoding="utf-8"))["records"]
            if (each["measured"], each.get("mode")) == ("time", {"training": "train"}.get(mode, mode))
            and "median_s" in each
            and "compiled" not in each
        }
        saved = [
            f"{times['roberta', None, n] / times['linformer', 128, n]:#.3g}" if ("roberta", None, n) in times else "–"
            for n in lengths
        ]
        assert cells.split(" | ") == saved, machine


def test_the_table_of_the_configuration_has_its_fields_and_defaults():
    page = PAGES["python.md"].read_text(encoding="utf-8")
    table = re.search(r"<!-- fields of LinformerConfig -->(.*?)<!-- end -->", page, re.DOTALL)
    shown = re.findall(r"^\| `(\w+)` \| (\S+) \|", table[1], re.MULTILINE)
    inherited = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    names = [field.name for field in dataclasses.fields(LinformerConfig) if field.name not in inherited]
    config = LinformerConfig()
    assert sorted(shown) == sorted((name, str(getattr(config, name))) for name in names)
