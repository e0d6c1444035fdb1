"""Tables and the picture of the systems, from results made by hand."""

from __future__ import annotations

import json

import matplotlib.image
import pytest

from linformer_kit.experiments.cost.registry import SYSTEMS
from linformer_kit.report.systems import PANELS, _panels, peer_ratios, systems_markdown, write_systems_report
from tests.report.bench_results import ENVIRONMENT


def entry(name: str, k: int | None, times: dict[int, float], **fields: object) -> dict:
    """Microseconds per token by n."""
    return {
        "name": name,
        "k": k,
        "label": name.title(),
        "complexity": "O(n)",
        "claim": "table 1",
        "note": f"what {name} is",
        "package": None,
        "runs": [{"n": n, "batch": 1, "per_token_s": time / 1e6, "first_run_s": 4.0} for n, time in times.items()],
        "skipped": [],
        "exponent": None,
        **fields,
    }


@pytest.fixture
def results() -> dict:
    settings = {
        "hidden_size": 29,
        "num_attention_heads": 3,
        "intermediate_size": 31,
        "tokens": 2048,
        "dtype": "bfloat16",
        "lengths": [512, 1024],
    }
    systems = [
        entry("sparse", None, {512: 20.0, 1024: 40.0}, exponent={"value": 2.0, "lengths": [512, 1024]}),
        entry("linformer", 128, {512: 10.0, 1024: 12.0}, exponent={"value": 1.263, "lengths": [512, 1024]}),
        entry("linformer", 256, {512: 15.0}),
        entry("lucidrains", 128, {512: 20.0, 1024: 96.0}, package="linformer 0.2.3"),
        entry("lucidrains", 256, {}, skipped=[{"n": n, "reason": "no | kernel"} for n in (512, 1024)]),
    ]
    return {"settings": settings, "environment": ENVIRONMENT, "systems": systems, "complete": True}


def test_times_and_exponents(results):
    text = systems_markdown(results)
    assert "| system | complexity | n 512 | n 1,024 | p | fitted over n |" in text
    assert "| Sparse | O(n) | 20 | 40 | 2.00 | 512, 1024 |" in text
    assert "| Linformer, k 128 | O(n) | 10 | 12 | 1.26 | 512, 1024 |" in text
    assert "| Linformer, k 256 | O(n) | 15 | – |  |  |" in text
    assert "width 29, 3 heads, feed-forward 31, bfloat16" in text
    assert "Not complete" not in text


def test_what_they_are_names_each_once(results):
    text = systems_markdown(results)
    assert text.count("what linformer is") == 1
    assert "| Lucidrains | O(n) | table 1 | what lucidrains is |" in text.replace(" (linformer 0.2.3)", "")


def test_ratios_to_peers_with_their_geometric_mean(results):
    assert peer_ratios(results["systems"]) == {
        "lucidrains": {(512, 128): pytest.approx(2), (1024, 128): pytest.approx(8)}
    }
    text = systems_markdown(results)
    assert "| 512 | 128 | 2.00 |" in text and "| 1,024 | 128 | 8.00 |" in text
    assert "| geometric mean |  | 4.00 |" in text


def test_without_peers_there_is_no_such_table(results):
    del results["systems"][3:]
    assert "Ours against" not in systems_markdown(results)


def test_what_was_not_run_has_its_reason(results):
    assert "| Lucidrains, k 256 | 512, 1024 | no ¦ kernel |" in systems_markdown(results)
    del results["systems"][4]
    assert "Not run" not in systems_markdown(results)


def test_compilation_is_told(results):
    assert "4.0 s at n 512, 4.0 s at n 1,024." in systems_markdown(results)
    del results["systems"][0]
    assert "compiles" not in systems_markdown(results)


def test_unfinished_results_say_so(results):
    results["complete"] = False
    assert "Not complete: interrupted or still running." in systems_markdown(results)


def test_every_system_has_a_panel_of_at_most_six_lines():
    others = [name for names in PANELS.values() for name in names]
    assert sorted([*others, "linformer"]) == sorted(SYSTEMS)
    assert all(len(names) <= 5 for names in PANELS.values())


def test_systems_with_a_k_have_a_panel_for_each_k_and_those_without_ours_of_the_first():
    entries = [
        entry("linformer", 128, {512: 1.0}),
        entry("linformer", 256, {512: 1.0}),
        entry("full", None, {512: 1.0}),
    ]
    entries += [entry("lucidrains", 128, {512: 1.0})]
    panels = {title: [(each["name"], each["k"]) for each in those] for title, those in _panels(entries).items()}
    assert panels == {
        "Table 1 of the paper": [("linformer", 128), ("full", None)],
        "Other Linformers, k 128": [("linformer", 128), ("lucidrains", 128)],
        "Other Linformers, k 256": [("linformer", 256)],
    }


@pytest.mark.parametrize("with_runs", [True, False])
def test_report_writes_json_table_and_picture(results, tmp_path, with_runs):
    if not with_runs:
        for system in results["systems"]:
            system["runs"] = []
    text = write_systems_report(results, tmp_path)
    assert (tmp_path / "systems.md").read_text() == text
    assert json.loads((tmp_path / "systems.json").read_text()) == results
    assert matplotlib.image.imread(tmp_path / "systems.png").shape[:2] == ((1260, 1500) if with_runs else (630, 750))
