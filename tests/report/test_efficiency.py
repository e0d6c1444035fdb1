"""Tables and pictures of time and memory saved, from a JSON made by hand."""

from __future__ import annotations

import itertools
import json

import pytest

from linformer_kit.report.efficiency import efficiency_markdown, write_efficiency_report
from linformer_kit.report.efficiency_entries import BASELINES, EXTRAPOLATED
from tests.report.bench_results import efficiency_results


def section(markdown, heading, below=None):
    """The text under a heading of the second level, or under one of the third in it, up to the next heading."""
    (text,) = [part for part in markdown.split("\n## ") if part.startswith(f"{heading}\n")]
    first, *others = text.split("\n### ")
    return first if below is None else next(part for part in others if part.startswith(f"{below}\n"))


def table_under(markdown, heading, below=None):
    """Rows of the table under a heading, as lists of cells."""
    rows = itertools.dropwhile(lambda line: not line.startswith("|"), section(markdown, heading, below).splitlines())
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in itertools.takewhile(bool, rows)]


def test_how_far_beyond_the_paper():
    results = efficiency_results([512])
    for cell, ratio in zip(results["cells"], (3.0, 10.4), strict=True):
        cell["time_saved"]["full"] = {"ratio": ratio, "extrapolated": False}
    # The paper has 1.5 and 1.3: twice and eight times as much.
    line = "Ratio to the paper's figure: geometric mean of 2 measured cells 4.00; lowest at n 512, k 128: 2.00."
    assert line in efficiency_markdown(results)


@pytest.mark.parametrize("field", ["time_saved", "memory_saved"])
def test_means_are_over_measured_cells(field):
    """Extrapolated cells neither count nor are the lowest."""
    results = efficiency_results([512, 65536])
    for cell in results["cells"]:
        measured = cell["seq_len"] == 512
        ratio = 2 * cell[f"paper_{field}"] if measured else 0.1
        cell[field]["roberta"] = {"ratio": ratio, "extrapolated": not measured}
    text = section(efficiency_markdown(results), f"{field[:-6].capitalize()} saved against {BASELINES['roberta']}")
    assert "geometric mean of 2 measured cells 2.00, without 5 extrapolated; lowest at n 512, k 128: 2.00." in text


def test_without_measured_cells_there_is_no_mean():
    results = efficiency_results([512])
    for cell in results["cells"]:
        cell["time_saved"]["eager"]["extrapolated"] = True
    assert "geometric mean" not in section(efficiency_markdown(results), f"Time saved against {BASELINES['eager']}")


def test_eager_is_last_in_any_order_and_explained():
    markdown = efficiency_markdown(efficiency_results([512], baselines=["eager", "roberta", "full"]))
    for what in ("Time", "Memory"):
        heading = f"{what} saved against "
        compared = [line.removeprefix(f"## {heading}") for line in markdown.splitlines() if heading in line]
        assert compared == [BASELINES[name] for name in ("full", "roberta", "eager")]
        explained = [
            name
            for name in BASELINES
            if "not what a user of today saves" in section(markdown, heading + BASELINES[name])
        ]
        assert explained == ["eager"]
    for table in ("Time", "Share of the machine's limits", "Memory"):
        names = [row[1] for row in table_under(markdown, table)[2:]]
        assert names == [f"Transformer, {name}" for name in BASELINES] + ["Linformer, k 128", "Linformer, k 256"]


def test_training_has_no_figures_of_the_paper():
    markdown = efficiency_markdown(efficiency_results([512], mode="train"))
    assert "Table 3" not in markdown and "Ratio to" not in markdown
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


def test_extrapolated_savings_have_a_table_of_their_own():
    results = efficiency_results([4096, 8192, 16384])
    markdown = efficiency_markdown(results)
    for what, field in (("Time", "time_saved"), ("Memory", "memory_saved")):
        heading = f"{what} saved against {BASELINES['eager']}"
        measured, beyond = table_under(markdown, heading), table_under(markdown, heading, "Extrapolated")
        assert [row[0] for row in measured[2:]] == ["4,096", "8,192", "16,384"]
        assert not any(EXTRAPOLATED in cell for row in measured for cell in row)
        assert all(cell.startswith("– (") for cell in measured[4][1:])
        assert [row[0] for row in beyond[2:]] == ["16,384"] and all("~ (" in cell for cell in beyond[2][1:])
        ratio = results["cells"][-1][field]["eager"]["ratio"]
        assert beyond[2][-1].startswith(f"{ratio:,.1f}~ (")
        assert "Extrapolated" not in markdown.split(f"## {what} saved against {BASELINES['full']}")[1].split("\n## ")[0]
    assert "`~`: extrapolated" in markdown


def test_extrapolated_times_and_memory_have_tables_of_their_own():
    results = efficiency_results([4096, 8192, 16384])
    markdown = efficiency_markdown(results)
    eager = {"n": "16,384", "encoder": "Transformer, eager"}
    per_token = 2e-5 + 2e-8 * 16384
    beyond = table_under(markdown, "Time", "Extrapolated")
    assert beyond[2:] == [[*eager.values(), f"{per_token * 1e6:.3g}~"]]
    assert [*eager.values(), "–", "–", "0", "–"] in table_under(markdown, "Time")
    per_sample = 2e5 * 17 * 16384
    beyond = table_under(markdown, "Memory", "Extrapolated")
    largest = int((2**34 - 2**28) / per_sample)
    assert beyond[2:] == [[*eager.values(), f"{per_sample / 2**20:,.1f}~", f"{largest}~"]]
    assert [*eager.values(), "–", "–", "–"] in table_under(markdown, "Memory")
    assert not any(
        EXTRAPOLATED in cell for name in ("Time", "Memory") for row in table_under(markdown, name) for cell in row
    )


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
    assert "the largest batch found is one that ran within the budget" in efficiency_markdown(results)
    assert {len(row) for row in rows} == {6} and sum(row[-1] == "1,201" for row in rows) == 1


def test_without_runs_the_largest_batch_is_said_to_be_computed():
    markdown = efficiency_markdown(efficiency_results([512]))
    assert "It is computed; no run was made at that batch. " in section(markdown, "Memory")


@pytest.mark.parametrize("baselines", [["eager", "full", "roberta"], ["full"], []])
@pytest.mark.e2e
def test_report_is_made_from_the_json_alone(tmp_path, baselines):
    results = json.loads(json.dumps(efficiency_results(baselines=baselines)))
    text = write_efficiency_report(results, tmp_path)
    assert text == (tmp_path / "efficiency.md").read_text()
    assert json.loads((tmp_path / "efficiency.json").read_text()) == results
    assert (tmp_path / "time_per_token.png").stat().st_size > 10_000
    assert (tmp_path / "time_saved.png").exists() == (tmp_path / "memory_saved.png").exists() == bool(baselines)
    assert [path.stem for path in sorted(tmp_path.glob("*.svg"))] == [
        path.stem for path in sorted(tmp_path.glob("*.png"))
    ]


@pytest.mark.e2e
def test_pictures_name_what_they_show(tmp_path, figures):
    write_efficiency_report(efficiency_results(), tmp_path)
    saved, _, per_token = figures
    labels = [text.get_text() for text in saved.legends[0].get_texts()]
    assert labels == ["k 128", "k 512", "k 2,048", "paper", "extrapolated"]  # three of five k
    assert [axis.get_title() for axis in saved.axes] == [
        "against SDPA (ours)",
        "against SDPA (RobertaModel)",
        "against eager attention",
    ]
    assert per_token.axes[0].get_ylabel() == "time per token and layer, µs"
    labels = [text.get_text() for text in per_token.legends[0].get_texts()]
    assert labels[3:6] == ["Transformer, SDPA (ours)", "Transformer, SDPA (HF)", "Transformer, eager"]
    # dotted: to the extrapolated points of eager attention, n 16,384 to 65,536, for each k
    dotted = [[line for line in axis.lines if line.get_linestyle() == ":"] for axis in saved.axes]
    assert [len(lines) for lines in dotted] == [0, 0, 9]
    # three k in three panels, each with its line, filled points, the legend's entry and the paper's dashes
    dashed = [line for axis in saved.axes for line in axis.lines if line.get_linestyle() == "--"]
    assert len(dashed) == 9


@pytest.mark.parametrize(("busy", "said"), [(1, "kept 1 core busy"), (2, "kept 2 cores busy")])
def test_busy_cores_are_named(busy, said):
    results = efficiency_results([512], baselines=["full", "roberta"])
    assert "busy" not in efficiency_markdown(results)
    results["settings"]["busy_cores"] = busy
    assert said in efficiency_markdown(results)
