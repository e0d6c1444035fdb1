"""Exact long encoders on a CPU, beside what people would pick instead: PyTorch, ONNX Runtime, OpenVINO.

Random weights and tokens. `torch` computes attention by scaled_dot_product_attention, `flex` by flex_attention, which
is compiled; `optimized` is `lk.optimize`, `linearised` is `lk.linearize`. `onnx_tracing` and `openvino_tracing` are the
files that their own converters make of `torch` (by `torch.onnx.export` and by tracing), and `onnx`, `openvino` and
`openvino_linearised` those of `linformer export`. Memory and outputs are of a process for each way (of `flex` with its
compiler), times of runs by turns in one process.

    python -m reproduce.rivals --output_dir runs/rivals                                    # all
    python -m reproduce.rivals --output_dir runs/rivals --only modernbert/bfloat16/8192    # one comparison
"""

from __future__ import annotations

import copy
import importlib
import itertools
import tempfile
from collections.abc import Callable
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas
import torch
from matplotlib.figure import Figure
from tqdm import tqdm
from transformers import PreTrainedModel

from linformer_cli.errors import check_choice
from linformer_cli.settings.declare import Count, Machine, Measurement, settings
from linformer_kit.analysis.measure import in_fresh_process, interleaved, peak_bytes, summary
from linformer_kit.export import exportable
from linformer_kit.linearized.linearize import linearize, optimize
from reproduce.common import Record, Results, ScriptSettings, length_axis, markdown, new_panels, run
from reproduce.linearised import Architecture, original

MIXED = 0  # in place of n: a batch of texts of many lengths
TEXTS, SHORTEST, LONGEST = 8, 100, 2000
Way = Literal[
    "torch",
    "flex",
    "optimized",
    "linearised",
    "onnx_tracing",
    "openvino_tracing",
    "onnx",
    "openvino",
    "openvino_linearised",
]
# The lines of the picture.
DRAWN: dict[Way, str] = {
    "torch": "PyTorch, sdpa",
    "openvino_tracing": "OpenVINO, traced",
    "optimized": "PyTorch, lk.optimize",
    "openvino": "OpenVINO, linformer export",
    "linearised": "PyTorch, lk.linearize",
    "openvino_linearised": "OpenVINO, lk.linearize and linformer export",
}
CPU = torch.device("cpu")


@settings
class Settings(ScriptSettings):
    """Measure encoders in PyTorch, ONNX Runtime and OpenVINO."""

    architectures: Measurement[list[Architecture]] = field(default_factory=lambda: ["modernbert", "minilm"])
    ways: Measurement[list[Way]] = field(default_factory=lambda: list(Way.__args__))  # type: ignore[attr-defined]
    dtypes: Measurement[list[Literal["float32", "bfloat16", "int8"]]] = field(
        default_factory=lambda: ["float32", "bfloat16", "int8"]
    )
    """Number formats; `int8` is of OpenVINO's files and of `onnx` only, `bfloat16` not of files of ONNX."""
    lengths: Measurement[list[int]] = field(default_factory=lambda: [512, 2048, 8192, MIXED])
    """n; 0: a mixed batch."""
    repetitions: Measurement[Count] = 3
    """Number of timed runs of each way, after a first one."""
    seconds: Measurement[Count] = 120
    """Time limit for the timed runs of a way."""
    only: Machine[str | None] = None
    """One comparison of ways: architecture/dtype/n; default: all."""


class Cell(NamedTuple):
    """One way to run an encoder in one number format, on a text of n tokens or on a mixed batch."""

    way: Way
    architecture: Architecture
    dtype: str
    n: int

    @property
    def is_possible(self) -> bool:
        """Whether the way has this number format."""
        has_int8 = self.way in ("onnx", "openvino_tracing", "openvino", "openvino_linearised")
        return {"float32": True, "bfloat16": not self.way.startswith("onnx"), "int8": has_int8}[self.dtype]

    @property
    def longest(self) -> int:
        return self.n or LONGEST

    def inputs(self) -> exportable.Arrays:
        """Random tokens, padded on the right in a mixed batch."""
        generator = np.random.default_rng(0)
        lengths = np.geomspace(SHORTEST, LONGEST, TEXTS).astype(int) if self.n == MIXED else np.array([self.n])
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = generator.integers(5, 1000, size=mask.shape) * mask
        return {"input_ids": ids.astype(np.int64), "attention_mask": mask.astype(np.int64)}

    def cost(self, files: Path, reference: Path) -> Record:
        """Peak memory beside weights, and differences of the output from PyTorch's in float32."""
        run, inputs = self.ready(files), self.inputs()
        output: list[np.ndarray] = []
        peak = peak_bytes(lambda: output.extend(run(inputs)), CPU)
        found = output[0][inputs["attention_mask"] == 1].astype(np.float32)
        if self.way == "torch" and self.dtype == "float32":
            np.save(reference, found)
        difference = np.abs(found - np.load(reference)) if reference.exists() else np.array([np.nan])
        return {
            "peak_bytes": peak,
            "difference": float(difference.max()),
            "mean_difference": float(difference.mean()),
        }

    def ready(self, files: Path) -> exportable.Run:
        """`runner`, after a short text that initialises libraries."""
        run = self.runner(files)
        run({name: array[:, :64] for name, array in self.inputs().items()})
        return run

    def runner(self, files: Path) -> exportable.Run:
        """A function that runs the encoder; a runtime's file is made in the folder unless it is there."""
        folder = files / self.way
        if self.way.startswith(("onnx", "openvino")):
            if not folder.exists():
                folder.mkdir()
                self._write(folder)
            return self._kind().runner(folder / self._kind().FILE, self.dtype)
        model = optimize(self._model()) if self.way == "optimized" else self._model()
        if self.way == "flex":
            model.set_attn_implementation("flex_attention")  # which transformers compiles
        return _in_torch(model.to(getattr(torch, self.dtype)))

    def _model(self) -> PreTrainedModel:
        model = copy.deepcopy(original(self.architecture, self.longest)).eval()
        return linearize(model) if "linearised" in self.way else model

    def _write(self, folder: Path) -> None:
        """Make a runtime's file: by its own converter, or as `linformer export` does."""
        model = self._model()
        example = {name: torch.from_numpy(array) for name, array in self._replace(n=64).inputs().items()}
        source = exportable.Exportable(model, _Tokenizer(self.longest), exportable.HEADS[-1])  # type: ignore[arg-type]
        kind = self._kind()
        path = folder / (f"float-{kind.FILE}" if self.dtype == "int8" else kind.FILE)
        if self.way == "openvino_tracing":
            import openvino

            converted = openvino.convert_model(model, example_input=example)
            openvino.save_model(converted, path, compress_to_fp16=False)
        elif self.way == "onnx_tracing":
            axes = {name: {0: "batch", 1: "sequence"} for name in example}
            torch.onnx.export(model, (), path, kwargs=example, dynamic_shapes=axes, dynamo=True)
        else:
            kind.write(source, path)
        if self.dtype == "int8":
            kind.quantise(path, folder / kind.FILE)

    def _kind(self) -> Any:
        """The module of the format of a file."""
        return importlib.import_module(f"linformer_kit.export.{self.way.partition('_')[0]}_file")


class _Tokenizer:
    """What an export asks of a tokenizer."""

    model_input_names, pad_token_id, is_fast = ("input_ids", "attention_mask"), 0, True

    def __init__(self, model_max_length: int) -> None:
        self.model_max_length = model_max_length


def _in_torch(model: torch.nn.Module) -> exportable.Run:
    @torch.inference_mode()
    def run(inputs: exportable.Arrays) -> list[np.ndarray]:
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        return [model(**tensors).last_hidden_state.float().numpy()]

    return run


def measure(given: Settings, results: Results) -> None:
    """Add the records of each comparison that has none; a way that fails says why."""
    comparisons = {
        "/".join(map(str, each)): each for each in itertools.product(given.architectures, given.dtypes, given.lengths)
    }
    if given.only is not None:
        check_choice("only", given.only, tuple(comparisons))
        comparisons = {given.only: comparisons[given.only]}
    for architecture, dtype, n in tqdm(comparisons.values(), desc="comparisons"):
        cells = [cell for way in given.ways if (cell := Cell(way, architecture, dtype, n)).is_possible]
        if all(results.find(**cell._asdict()) for cell in cells):
            continue
        reference = results.folder / f".reference-{architecture}-{n}.npy"
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder)
            records = {cell: _or_error(Cell.cost, cell, files, reference) for cell in cells}
            able = [cell for cell, record in records.items() if "error" not in record]
            timings = _or_error(_times, able, files, given.repetitions, given.seconds)
        for cell, record in records.items():
            timed = timings.get(cell.way, {}) if "error" not in timings else timings
            if results.find(**cell._asdict()) is None:
                results.add(**cell._asdict(), **(timed | record))


def _or_error(function: Callable[..., Record], *arguments: Any) -> Record:
    try:
        return in_fresh_process(function, *arguments)
    except (RuntimeError, ImportError, MemoryError) as error:
        return {"error": str(error).strip().partition("\n")[0] or type(error).__name__}


def _times(cells: list[Cell], files: Path, repetitions: int, seconds: float) -> dict[str, Record]:
    """The times of the ways of a comparison, by turns, by way."""
    runs = {cell: partial(cell.ready(files), cell.inputs()) for cell in cells}
    timings = interleaved(runs, device=CPU, repetitions=repetitions, seconds=seconds)
    return {cell.way: summary(times) for cell, times in timings.items()}


def table(content: Record) -> str:
    """Seconds, peak memory and differences, by number of tokens."""
    frame = pandas.DataFrame(content["records"])
    parts = [
        "# Encoders beside other runtimes\n\nMedians; one text of n tokens, or a mixed batch: 8 texts of 100 to 2,000."
    ]
    columns = (("median_s", "seconds", "{:,.3f}", 1), ("peak_bytes", "peak in MiB", "{:,.0f}", 2**20))
    for (architecture, dtype), part in frame.groupby(["architecture", "dtype"], sort=False):
        for name, what, form, unit in (*columns, ("difference", "largest difference", "{:.1e}", 1)):
            if name in part and part[name].notna().any():
                values = part[part[name].notna()].assign(**{name: part[name] / unit})
                grid: Any = values.pivot_table(index="way", columns="n", values=name, sort=False)
                shown = (
                    grid.map(form.format)
                    .where(grid.notna(), "–")
                    .rename(columns=lambda n: f"n {n:,}" if n else "mixed batch")
                    .reset_index()
                )
                parts.append(f"## {architecture}, {dtype}: {what}\n\n{markdown(shown)}")
    return "\n\n".join(parts)


def draw(content: Record) -> Figure | None:
    """Seconds by n, a panel for each encoder and number format with several n, a line for each way in `DRAWN`."""
    timed = [record for record in content["records"] if record["way"] in DRAWN and "median_s" in record]
    frame = pandas.DataFrame([record for record in timed if record["n"] != MIXED], columns=[*Cell._fields, "median_s"])
    groups = iter(frame.groupby(["architecture", "dtype"], sort=False))
    panels = {name: part for name, part in groups if part["n"].nunique() > 1}
    if not panels:
        return None
    ways = [way for way in DRAWN if (frame["way"] == way).any()]
    figure, grid = new_panels(len(panels), (4.8, 3.8))
    for axes, ((architecture, dtype), part) in zip(grid, panels.items(), strict=True):
        for marker, way in zip("osD^vP", ways, strict=False):
            line = part[part["way"] == way].sort_values("n")
            axes.plot(line["n"], line["median_s"], marker=marker, label=DRAWN[way])
        length_axis(axes, sorted(part["n"].unique()))
        axes.set(ylabel="seconds for one text", title=f"{architecture}, {dtype}")
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    return figure


if __name__ == "__main__":
    run(Settings, measure, table, draw)
