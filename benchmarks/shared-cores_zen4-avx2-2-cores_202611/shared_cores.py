"""The time of one layer beside another process that keeps a core busy, and alone.

    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python shared_cores.py shared_cores.json [MINILM]

Base size (768 wide, 12 heads, feed-forward 3,072), float32, 4,096 tokens, or one text if that is longer, two threads.
Medians of interleaved runs: transformers' RobertaModel with SDPA, a Linformer (with neighbours: mean pooling and one
global token), and the same in plain operations. With the folder of all-MiniLM-L6-v2, also a text of 4,096 tokens:
full attention with its positions repeated, pieces of 512 tokens, and the student with the adapter that ships.
"""

from __future__ import annotations

import copy
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModel, RobertaConfig, RobertaModel

import linformer_kit as lk
from linformer_kit.analysis.measure import interleaved
from linformer_kit.environment import environment
from linformer_kit.models.base import set_positions
from linformer_kit.operator import kernels
from linformer_kit.report.base import environment_line, table

CPU = torch.device("cpu")
CELLS = [(512, 128), (1024, 256), (2048, 128), (4096, 256), (8192, 128)]
WINDOWS = (0, 64)


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep cores busy with processes that do nothing else, as in a shared container."""
    until_orphaned = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            processes.append(subprocess.Popen([sys.executable, "-c", until_orphaned]))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def plainly(run: Callable[[], object]) -> Callable[[], object]:
    """The same in plain operations."""

    def plain() -> None:
        with kernels.plain():
            run()

    return plain


def layer(n: int, k: int, window: int) -> dict[str, Callable[[], object]]:
    """A forward pass of each encoder."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "num_hidden_layers": 1}
    roberta = RobertaModel(RobertaConfig(max_position_embeddings=n + 2, **sizes), add_pooling_layer=False)
    pooled = {"projection": "mean_pool", "global_tokens": 1, "sliding_window": window} if window else {}
    config = lk.LinformerConfig(max_position_embeddings=n, projected_dim=k, sharing="layerwise", **sizes, **pooled)
    linformer = lk.LinformerModel(config, add_pooling_layer=False)
    ids = torch.randint(5, 1000, (max(1, 4096 // n), n))
    runs = {name: (lambda model=model: model(ids)) for name, model in (("roberta", roberta), ("linformer", linformer))}
    narrow = copy.deepcopy(linformer).bfloat16()
    for model in (roberta, linformer, narrow):
        model.eval()
    return {**runs, "plain": plainly(runs["linformer"]), "linformer in bfloat16": lambda: narrow(ids)}


def minilm(folder: str, n: int = 4096) -> dict[str, Callable[[], object]]:
    """A text of n tokens."""
    original, full = (AutoModel.from_pretrained(folder) for _ in range(2))
    set_positions(full, n, "extend")
    student = lk.linearize(AutoModel.from_pretrained(folder), adapter="all-MiniLM-L6-v2-4096")
    ids = torch.randint(1000, 20000, (1, n))
    return {
        "full": lambda: full(ids),
        "pieces": lambda: original(ids.view(-1, 512)),
        "student": lambda: student(ids),
        "plain": plainly(lambda: student(ids)),
    }


def markdown(results: dict) -> str:
    """Times over ours, alone and with a busy core, as a table."""
    others = {"layer": ("roberta", "plain", "linformer in bfloat16"), "MiniLM": ("full", "pieces", "plain")}
    titles = {"roberta": "RobertaModel", "plain": "plain operations", "linformer in bfloat16": "bfloat16"}
    titles |= {"full": "full attention", "pieces": "pieces of 512"}
    lines = ["# Shared cores: float32, two threads", "", environment_line(results["environment"])]
    lines += ["", f"PyTorch's vectors: {results['vectors']}.", ""]
    lines += [
        "Medians of interleaved runs, over the Linformer's time: alone / beside a process that keeps a core busy."
    ]
    for kind, names in others.items():
        cases = [case for case in results["cases"] if case["case"].startswith("MiniLM") == (kind == "MiniLM")]
        by_case: dict[str, list[dict]] = {}
        for case in cases:
            by_case.setdefault(case["case"], []).append(case["seconds"])
        ours = "student" if kind == "MiniLM" else "linformer"
        rows = [
            [
                case,
                " / ".join(f"{1e3 * seconds[ours]:.0f} ms" for seconds in both),
                *(" / ".join(f"{seconds[name] / seconds[ours]:.2f}" for seconds in both) for name in names),
            ]
            for case, both in by_case.items()
        ]
        if rows:
            lines += ["", *table([kind, "ours", *(titles[name] for name in names)], rows)]
    return "\n".join([*lines, ""])


def main(path: Path, folder: str | None) -> None:
    """Measure each case with 0 and 1 busy cores, and write after each."""
    results: dict = {"environment": environment(CPU), "vectors": torch.backends.cpu.get_cpu_capability(), "cases": []}
    cases = [(f"n {n}, k {k}, {w} neighbours", lambda n=n, k=k, w=w: layer(n, k, w)) for w in WINDOWS for n, k in CELLS]
    if folder is not None:
        cases.append(("MiniLM, n 4096", lambda: minilm(folder)))
    for name, build in cases:
        runs = build()
        for busy in (0, 1):
            with torch.inference_mode(), busy_cores(busy):
                timings = interleaved(runs, device=CPU, repetitions=5, seconds=15.0)
            seconds = {kind: statistics.median(taken) for kind, taken in timings.items()}
            results["cases"].append({"case": name, "busy_cores": busy, "seconds": seconds})
            print(name, f"{busy} busy", {kind: f"{1e3 * taken:.0f} ms" for kind, taken in seconds.items()}, flush=True)
            path.write_text(json.dumps(results, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
