"""Tables and pictures of time and memory saved, from a JSON made by hand."""

from __future__ import annotations

import itertools
import json

import pytest

from linformer_kit.report.efficiency import BASELINES, efficiency_markdown, write_efficiency_report
from tests.report.bench_results import efficiency_results


def table_under(markdown, heading):
    """Rows of the table under a heading, as lists of cells."""
    lines = iter(markdown.splitlines())
    while next(lines) != f"## {heading}":
        pass
    assert next(lines) == ""
    rows = itertools.takewhile(bool, lines)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_how_far_beyond_the_paper():
    results = efficiency_results([512])
    for cell, ratio in zip(results["cells"], (3.0, 10.4), strict=True):
        cell["time_saved"]["full"] = {"ratio": ratio, "extrapolated": False}
    # The paper has 1.5 and 1.3: twice and eight times as much.
    line = "Ratio to the paper's figure: geometric mean of 2 cells 4.00; lowest at n 512, k 128: 2.00."
    assert line in efficiency_markdown(results)


def test_training_has_no_figures_of_the_paper():
    markdown = efficiency_markdown(efficiency_results([512], mode="train"))
    assert "paper" not in markdown
    saved = (2e-5 + 1e-8 * 512) / (1.5e-5 + 8e-9 * 128)
    assert table_under(markdown, f"Time saved against {BASELINES['full']}")[2][1] == f"{saved:.2f}"


def test_time_saved_stands_beside_the_papers():
    markdown = efficiency_markdown(efficiency_results([512, 16384]))
    rows = table_under(markdown, f"Time saved against {BASELINES['full']}")
    assert rows[0] == ["n", "k 128", "k 256", "k 512", "k 1,024", "k 2,048"]
    assert rows[2][0] == "512" and rows[2][3:] == ["", "", ""]
    saved = (2e-5 + 1e-8 * 512) / (1.5e-5 + 8e-9 * 128)
    assert rows[2][1] == f"{saved:.2f} (1.5)"
    assert rows[3][0] == "16,384" and rows[3][5].endswith(" (3.3)")


def test_what_is_extrapolated_is_marked_and_explained():
    markdown = efficiency_markdown(efficiency_results([4096, 8192, 16384]))
    rows = table_under(markdown, f"Time saved against {BASELINES['eager']}")
    assert all("~ (" in cell for cell in rows[4][1:]) and not any("~" in cell for cell in rows[3][1:])
    assert "`~`: extrapolated" in markdown
    times = table_under(markdown, "Time")
    eager = next(row for row in times if row[:2] == ["16,384", "Transformer, eager"])
    assert eager[2:5] == ["–", "–", "0"] and eager[5].endswith("~")


def test_what_was_not_measured_is_a_dash():
    """A single length lets nothing be extrapolated."""
    markdown = efficiency_markdown(efficiency_results([65536]))
    rows = table_under(markdown, f"Memory saved against {BASELINES['eager']}")
    assert rows[2][1:] == ["– (60)", "– (52)", "– (40)", "– (20)", "– (18)"]


def test_memory_and_shares():
    markdown = efficiency_markdown(efficiency_results([4096, 8192]))
    memory = table_under(markdown, "Memory")
    assert memory[0][-1] == "largest batch in 16 GiB"
    linformer = next(row for row in memory if row[:2] == ["4,096", "Linformer, k 128"])
    per_sample = (2e4 + 1280) * 4096
    assert linformer[2:] == ["332 (4)", f"{per_sample / 2**20:.1f}", f"{int((2**34 - 2**28) / per_sample):,}"]
    shares = table_under(markdown, "Share of the machine's limits")
    assert shares[2][4:] == ["71% (compute)", ""]
    assert next(row for row in shares if "Linformer" in row[1])[4:] == ["71% (compute)", "83%"]


def test_without_memory_and_in_training_it_says_so():
    markdown = efficiency_markdown(efficiency_results([512], memory=False, mode="train"))
    assert "## Memory" not in markdown
    assert "training step" in markdown and "without optimiser and dropout" in markdown


def test_batches_found_on_an_accelerator_have_a_column():
    results = efficiency_results([4096, 8192])
    results["cells"][0]["memory"]["found_batch"] = 1201
    rows = table_under(efficiency_markdown(results), "Memory")
    assert rows[0][-1] == "largest batch found"
    assert {len(row) for row in rows} == {6} and sum(row[-1] == "1,201" for row in rows) == 1


@pytest.mark.parametrize("baselines", [["eager", "full", "roberta"], ["full"], []])
@pytest.mark.e2e
def test_report_is_made_from_the_json_alone(tmp_path, baselines):
    results = json.loads(json.dumps(efficiency_results(baselines=baselines)))
    text = write_efficiency_report(results, tmp_path)
    assert text == (tmp_path / "efficiency.md").read_text()
    assert json.loads((tmp_path / "efficiency.json").read_text()) == results
    assert (tmp_path / "time_per_token.png").stat().st_size > 10_000
    assert (tmp_path / "time_saved.png").exists() == (tmp_path / "memory_saved.png").exists() == bool(baselines)


@pytest.mark.e2e
def test_pictures_name_what_they_show(tmp_path, figures):
    write_efficiency_report(efficiency_results(), tmp_path)
    saved, _, per_token = figures
    labels = [text.get_text() for text in saved.legends[0].get_texts()]
    assert labels == ["k 128", "k 256", "k 512", "k 1,024", "k 2,048", "paper", "extrapolated"]
    assert [axis.get_title() for axis in saved.axes] == [
        "against eager attention",
        "against SDPA (ours)",
        "against SDPA (RobertaModel)",
    ]
    assert per_token.axes[0].get_ylabel() == "time per token and layer, µs"
    # five k in three panels, each with its line, filled points, the legend's entry and the paper's dashes
    dashed = [line for axis in saved.axes for line in axis.lines if line.get_linestyle() == "--"]
    assert len(dashed) == 15
