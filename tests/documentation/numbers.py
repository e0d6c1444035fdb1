"""Values for the numbers of the pages, out of the results in `benchmarks/`.

`numbers/PAGE.yaml` has two lists of passages of a page, as they stand there (line breaks count as spaces):

    measured:
      - "ends 0.50 nats behind": table("learning-gap", "code-128", "none, shifted_pooling", "minus Transformer")
      - "from 0.46 to 0.56": [error(8), error(12)]
    not measured:
      - "masks 15 % of the tokens"

Each number of a measured passage, in order, is the rounded value of its expression, with its sign, so that of "0.1 behind"
and "0.1 ahead" only one passes: Python, with the functions below and
those of `BUILTINS`. An expression may give a list of values. Numbers that are not measured are settings, sizes, and what other people found.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import yaml
from linformer_kit.experiments.spectrum.choose import choose_projected_dims
from linformer_kit.experiments.spectrum.figure1 import read_spectrum

from linformer_kit.experiments.quality.table2_cells import chosen_cells
from linformer_kit.linearized.adapter import ABOUT, shipped_adapters
from tests.documentation.pages import ROOT

FOLDER = Path(__file__).parent / "numbers"
BUILTINS = {
    "abs": abs,
    "dict": dict,
    "max": max,
    "min": min,
    "len": len,
    "sorted": sorted,
    "sum": sum,
    "exp": math.exp,
    "mean": statistics.mean,
    "geometric_mean": statistics.geometric_mean,
    "stdev": statistics.stdev,
    "zip": zip,
}
_NUMBER = r"(?<![\w.,])[-+−]?\d[\d,]*(?:\.\d+)?"
_UNITS = r"(?: ?%|× | (?:ms|s|µs|minutes|hours|nats|MiB|MB|GB|GiB|GFLOP|TFLOP|times|points)\b)"
# Decimals, and integers with a unit.
WALKED = re.compile(rf"(?<![\w.,])(?:\d[\d,]*\.\d+(?!\.?\d)(?!\w)|\d[\d,]*(?={_UNITS}))")


def folder(name: str) -> Path:
    """The folder of results of this name, with or without machine and month."""
    found = [*ROOT.glob(f"benchmarks/{name}_*"), *ROOT.glob(f"benchmarks/{name}")]
    assert len(found) == 1, f"{name}: expected one folder in benchmarks, got {[path.name for path in found]}"
    return found[0]


def result(name: str, file: str = "*") -> Any:
    """The JSON of a folder; `file` is its name without the suffix if there are several."""
    found = sorted(folder(name).glob(f"{file}.json"))
    assert len(found) == 1, f"{name}: expected one file {file}.json, got {[path.name for path in found]}"
    return json.loads(found[0].read_text(encoding="utf-8"))


def table(name: str, heading: str | None, row: str, column: str, number: int = 0, *, file: str = "*") -> float:
    """A number in a table that a folder's JSON was made into: number 0 of `4.807 ± 0.109` is 4.807.

    Args:
        name: The folder.
        heading: Heading above the table, without `#`; None: any.
        row: First cell of the row, without `*` and backticks; cells separated by ` | ` if the first is not enough.
        column: The heading of the column.
        number: Which of the numbers of the cell.
        file: Name of the Markdown file without the suffix, if there are several.
    """
    (path,) = sorted(folder(name).glob(f"{file}.md"))
    under, columns = "", []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            under = line.lstrip("# ")
        if not line.startswith("|"):
            columns = []
            continue
        cells = [re.sub(r"[*`]", "", cell).strip() for cell in line.strip()[1:-1].split("|")]
        if not columns:
            columns = cells
        elif heading in (None, under) and column in columns and f"{' | '.join(cells)} | ".startswith(f"{row} | "):
            found.append(cells[columns.index(column)])
    assert len(found) == 1, f"{name}: expected one {row} | {column} under {heading}, got {found}"
    return numbers(found[0])[number]


def ratios_to_paper(name: str, baseline: str) -> list[float]:
    """The measured savings of time of `bench efficiency` over the paper's, without extrapolated ones."""
    return [
        cell["time_saved"][baseline]["ratio"] / cell["paper_time_saved"]
        for cell in result(name)["cells"]
        if not cell["time_saved"][baseline]["extrapolated"]
    ]


def trials(study: str, cell: str, variant: str, rate: float | None = None) -> dict[int, Any]:
    """The trainings of a variant in `bench learning`, by their seeds, at a learning rate; None: the variant's own."""
    results = result(study)
    wanted = (cell, variant, results["learning_rates"][variant] if rate is None else rate)
    found = {
        trial["seed"]: trial
        for trial in results["trials"]
        if (trial["cell"], trial["variant"], trial["learning_rate"]) == wanted
    }
    assert found, f"{study}: expected trials of {variant} at {wanted[-1]} in {cell}"
    return found


def losses(study: str, cell: str, variant: str, rate: float | None = None) -> dict[int, float]:
    """The validation losses of these trainings, by their seeds."""
    return {seed: trial["validation_loss"] for seed, trial in trials(study, cell, variant, rate).items()}


def loss(study: str, cell: str, variant: str) -> float:
    """Mean validation loss of a variant at its learning rate, over the seeds of `bench learning`."""
    return statistics.mean(losses(study, cell, variant).values())


def gaps(
    study: str, cell: str, variant: str, other: str = "Transformer", rate: float | None = None
) -> dict[int, float]:
    """The loss of a variant minus that of another, by seed, at one learning rate; None: each at its own."""
    ours, theirs = (losses(study, cell, name, rate) for name in (variant, other))
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}


def gap(study: str, cell: str, variant: str, other: str = "Transformer") -> float:
    """Mean over equal seeds of the loss of a variant minus that of another."""
    return statistics.mean(gaps(study, cell, variant, other).values())


def gaps_after(study: str, cell: str, variant: str, updates: int) -> list[float]:
    """The losses of a variant minus the Transformer's after some updates, for equal seeds."""
    ours, theirs = (trials(study, cell, name) for name in (variant, "Transformer"))
    after = [[dict(each[seed]["curve"])[updates] for each in (ours, theirs)] for seed in ours.keys() & theirs.keys()]
    return [one - other for one, other in after]


def shares(name: str, layer: int | None = None) -> list[float]:
    """Shares of the largest singular values that `linformer spectrum` reports, of the heads of a layer; None: of all."""
    results = result(name)
    layers = results["cumulative"] if layer is None else [results["cumulative"][layer]]
    return [head[results["at"] - 1] for heads in layers for head in heads]


def spectrum(name: str) -> list[float]:
    """Mean, least and largest share of the heads of a spectrum, then the mean of each layer."""
    layers = range(len(result(name)["cumulative"]))
    every = shares(name)
    return [statistics.mean(every), min(every), max(every), *(statistics.mean(shares(name, layer)) for layer in layers)]


def kept(name: str, aim: str, by: str = "head") -> list[float]:
    """The shares that the heads keep with as many slots in all, distributed by `linformer spectrum --choose`."""
    found = read_spectrum(result(name))
    ks = choose_projected_dims(found, budget=result(name)["at"] * found.error.size, aim=aim, by=by)
    return [found.cumulative[layer, head, k - 1] for layer, row in enumerate(ks) for head, k in enumerate(row)]


def theorem(number: int, attention: str, n: int, method: str, k: int, measure: str) -> Any:
    """Error, its factor of deviation, and the shares held for each ε, of a method at k in the trials of a theorem.

    The measures are `vector`, `row` and `corrected` for Theorem 1, `relative` to the output and as `stated` for 2.
    """
    (case,) = [case for case in result("theorems")["cases"] if (case["name"], case["n"]) == (attention, n)]
    (found,) = [each[measure] for each in case[f"theorem{number}"][method] if each["k"] == k]
    return found


def theorem2(attention: str, n: int, method: str, k: int) -> float:
    """The error of a method at k relative to the output in the trials of Theorem 2."""
    return theorem(2, attention, n, method, k, "relative")["error"]


def adapter(name: str) -> Any:
    """The results of the distillation of an adapter that ships."""
    return json.loads((shipped_adapters()[name] / ABOUT).read_text(encoding="utf-8"))["distillation"]


def over_ours(name: str, system: str, *ks: int) -> float:
    """Geometric mean of a system's median time over that of our Linformer in `bench systems`, at these k; none: at all."""
    times = {
        (each["name"], each["k"], run["n"]): run["median_s"] for each in result(name)["systems"] for run in each["runs"]
    }
    ours = {(k, n): seconds for (found, k, n), seconds in times.items() if found == "linformer" and (not ks or k in ks)}
    return statistics.geometric_mean(times[system, k, n] / seconds for (k, n), seconds in ours.items())


def formats(case: str, kind: str, *, plain: bool = False) -> float:
    """Seconds of a case in a number format, with the kernels or in plain operations, without instructions for it."""
    cases = result("formats")["cases"]
    (seconds,) = [found["seconds"] for found in cases if (found["case"], found["plain"]) == (case, plain)]
    return seconds[kind]


def fine_tuned(name: str, model: str, task: str) -> Any:
    """The cell of `bench table2` that its tables show: that of the best learning rate."""
    return chosen_cells(result(name))[model, task]


def percents(name: str, model: str, task: str) -> list[float]:
    """Accuracy in percent with each seed of that cell."""
    return [100 * run["metrics"]["accuracy"] for run in fine_tuned(name, model, task)["runs"]]


def training_seconds(name: str, model: str, task: str) -> float:
    """Median time of training of that cell, not rounded as in the table."""
    return statistics.median(run["seconds"] for run in fine_tuned(name, model, task)["runs"])


def bag_of_words(task: str, *, shared: bool = False, file: str = "bag_of_words") -> float:
    """Accuracy in percent of logistic regression on the words of a task of Table 2."""
    results = result("bag-of-words", file)["results"]
    (found,) = (each["accuracy"] for each in results if (each["task"], each["shared"]) == (task, shared))
    return 100 * found


def standard_error(share: float, count: int) -> float:
    """Standard error of a share of so many texts, in percent points."""
    return 100 * math.sqrt(share * (1 - share) / count)


def late(method: str, first: int = 10) -> float:
    """Recall at 10 or 1 of sentences beyond the teacher's longest input, at the largest n of the long documents."""
    return result("documents-minilm-4096")["scores"]["late_sentence"][method]["4096"][f"recall@{first}"]


def passkey(method: str) -> float:
    """Share of the hidden numbers that are found, over the lengths that are too long for the teacher."""
    scores = result("documents-minilm-4096")["scores"]["passkey"][method]
    return statistics.mean(scores[n]["recall@1"] for n in ("1024", "2048", "4096"))


def authorship(method: str) -> list[float]:
    """Percent of authors told by a regression on embeddings, for each seed."""
    runs = (result("documents-minilm-authorship", f"seed{seed}") for seed in range(3))
    return [100 * run["scores"]["classification"][method]["4096"]["accuracy"] for run in runs]


def quantized(aware: bool) -> list[float]:
    """Mean accuracy in percent and its deviation over the seeds: in float32, in int8 by ONNX Runtime, by torchao."""
    runs = [
        run for run in result("quantization")["runs"] if (run["model"], run["quantization_aware"]) == ("sst2", aware)
    ]
    found = []
    for exported, precision in (("onnx", "float32"), ("onnx", "int8"), ("torch", "int8")):
        accuracies = [100 * run[exported]["quality"][precision] for run in runs]
        found += [statistics.mean(accuracies), statistics.stdev(accuracies)]
    return found


def milliseconds(name: str, method: str, length: int) -> float:
    """Median time of a method of `bench documents` for one text of n tokens."""
    return 1000 * result(name)["cost"][method][str(length)]["median_s"]


def time_share(name: str, length: int) -> float:
    """Time of the student as a share of that of full attention over n tokens."""
    return milliseconds(name, "student", length) / milliseconds(name, "stretched", length)


def numbers(text: str) -> list[float]:
    """All numbers in a text."""
    return [float(found.replace(",", "").replace("−", "-")) for found in re.findall(_NUMBER, text)]


def wrong_numbers(passage: str, expressions: Any) -> str | None:
    """What is wrong in a passage; None: its numbers are those of the expressions."""
    shown = re.findall(_NUMBER, passage)
    values = []
    for expression in expressions if isinstance(expressions, list) else [expressions]:
        value = eval(str(expression), {"__builtins__": {}} | KNOWN)
        values += value if isinstance(value, list) else [value]
    if len(shown) != len(values):
        return f"{passage!r}: expected {len(values)} numbers, got {len(shown)}"
    for text, value in zip(shown, map(float, values), strict=True):
        (number,) = numbers(text)
        digits = len(text.partition(".")[2])
        if not abs(value - number) <= 0.5 * 10**-digits + 1e-9:
            return f"{passage!r}: expected {value:.6g}, got {text}"
    return None


KNOWN: dict[str, Any] = (
    BUILTINS
    | {"result": result, "table": table, "loss": loss, "gap": gap}
    | {"ratios_to_paper": ratios_to_paper, "trials": trials, "losses": losses, "gaps": gaps, "gaps_after": gaps_after}
    | {
        "shares": shares,
        "spectrum": spectrum,
        "kept": kept,
        "theorem": theorem,
        "theorem2": theorem2,
        "adapter": adapter,
        "formats": formats,
        "over_ours": over_ours,
        "fine_tuned": fine_tuned,
        "percents": percents,
        "training_seconds": training_seconds,
        "standard_error": standard_error,
        "bag_of_words": bag_of_words,
        "late": late,
        "passkey": passkey,
        "authorship": authorship,
        "quantized": quantized,
        "milliseconds": milliseconds,
        "time_share": time_share,
    }
)


def passages(page: str) -> tuple[list[tuple[str, Any]], list[str]]:
    """The measured passages of a page with their expressions, and those that are not measured."""
    path = FOLDER / f"{Path(page).stem}.yaml"
    found = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
    found = found or {}
    measured = [pair for entry in found.get("measured") or [] for pair in entry.items()]
    return measured, list(found.get("not measured") or [])


def prose(text: str) -> str:
    """A page without front matter, blocks of code, and tables that other tests make, in one line."""
    text = re.sub(r"\A---\n.*?\n---\n|```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"<!-- (?:rows|tables) of .*?<!-- end -->", " ", text, flags=re.DOTALL)
    text = re.sub(r"^#+ .*$", " ", text, flags=re.MULTILINE)
    return re.sub(r"\s+", " ", text)


def walked(text: str) -> list[str]:
    """Passages of prose with a number that needs a source."""
    text = re.sub(
        r"`[^`]*`|\]\([^)]*\)|\barXiv [\d.]+|\b(?:[Ss]ections?|Python) [\d.]+(?:(?:,| and) \d\.[\d.]+)*", " ", text
    )
    return [text[max(0, found.start() - 30) : found.end() + 30] for found in WALKED.finditer(text)]
