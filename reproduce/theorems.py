"""Theorems 1 and 2 of the paper, tried on random attention and on that of a trained encoder.

The paper (sections 3 and 4): P is near a matrix of rank k = O(log n), found by a random projection R (Theorem 1), and
with random E and F k need not even grow with n (Theorem 2). docs/paper.md says where its proofs fail. Here their
constructions are run: the error by k, beside the best matrix of rank k (SVD), means of windows (pooling) and
two outputs that need no attention at all (0, and the mean of V).

    python -m reproduce.theorems --model sentence-transformers/all-MiniLM-L6-v2 --text_file WIKIPEDIA

16 minutes on one core. Without --model: random attention alone, 5 minutes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter
from pydantic import Field
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from linformer_cli.errors import InputError
from linformer_cli.settings.declare import Count, CountOrZero, File, Measurement, ModelName, Seed, settings
from linformer_kit.data.files import text_files
from linformer_kit.interop.loading import load_model
from linformer_kit.operator.projections.matrices import pooling_matrix
from linformer_kit.report.figures import new_figure, show_grid
from reproduce.common import Record, Results, ScriptSettings, markdown, run
from reproduce.figure1 import sequence_length, sequences

CONFIDENCE = 0.9  # share of columns, or of queries, that counts as "the bound holds"
MOST_TIMES_N = 8  # Theorem 1 is tried with k up to 8n, in steps of √2
FIRST, SECOND = "R, as in the proof", "proof, δ = 1/2ⁿ"  # the methods of the proofs of both theorems
_RANDOM_MATRICES = 3
_DRAWS_RATIO = 4  # R is drawn this many times more often for random matrices, which are few, and for k up to n
_RECORDING = "recording"  # name of an attention function of transformers

Size = Annotated[int, Field(ge=2, le=10**6)]
Bound = Annotated[float, Field(ge=0.01, lt=1)]


@settings
class Settings(ScriptSettings):
    """Measure what the theorems promise."""

    model: Measurement[ModelName | None] = None
    """Folder or hub id of an encoder with full attention; default: random attention alone."""
    text_file: Measurement[list[File] | None] = None
    """Files of its texts; default: the source of the Python standard library."""
    layers: Measurement[list[CountOrZero] | None] = None
    """Its layers, counted from 0; default: the first, the middle and the last."""
    samples: Measurement[Count] = 4
    """Number of its sequences to measure."""
    lengths: Measurement[list[Size]] = dataclasses.field(default_factory=lambda: [128, 512, 2048])
    """Values of n for random attention."""
    head_dim: Measurement[Size] = 64
    """d of random attention."""
    epsilons: Measurement[list[Bound]] = dataclasses.field(default_factory=lambda: [0.1, 0.25, 0.5])
    """Values of ε, the relative error bound of the theorems."""
    draws: Measurement[Count] = 20
    """Number of random matrices R for each random attention matrix; a quarter as many for the attention of the model,
    and for k > n."""
    seed: Measurement[Seed] = 0
    """Seed of all random numbers."""


def theorem1_dim(n: int, epsilon: float) -> int:
    """k of Theorem 1, ⌈5·ln n / (ε² - ε³)⌉; n is 2 or more, ε between 0 and 1."""
    return math.ceil(5 * math.log(n) / (epsilon**2 - epsilon**3))


def theorem2_dim(n: int, d: int, epsilon: float) -> int:
    """k of Theorem 2 by the constants of its proof, ⌈min(9·ln d, 5·ln n) / (ε² - ε³)⌉; the theorem states 9·d·log d."""
    return math.ceil(min(9 * math.log(d), 5 * math.log(n)) / (epsilon**2 - epsilon**3))


def union_bound(events: float, k: int, epsilon: float) -> float:
    """Upper bound of the probability that one of `events` products has an error above ε, by Johnson-Lindenstrauss.

    Bounds above 1 are vacuous. Theorem 1 counts 2·n events; 4·n is correct for inner products.
    """
    return events * math.exp(-(epsilon**2 - epsilon**3) * k / 4)


def theorem2_failure(n: int, d: int, epsilon: float) -> float:
    """Theorem 2's bound of the probability of failure at one query.

    If its k is 5·ln n/(ε² - ε³), the bound must hold for d columns of V; if it is 9·ln d/(ε² - ε³), which has no n, the
    proof uses 2·d rows of P instead, each with d columns.
    """
    k = theorem2_dim(n, d, epsilon)
    return union_bound(4 * d**2 if k < theorem1_dim(n, epsilon) else 2 * d, k, epsilon)


# Attention, and ways to approximate it. Axes: heads, n (positions), d (head_dim), k (slots).


class Heads(NamedTuple):
    """Attention of some heads: Q·W_Q divided by √d, K·W_K and V·W_V."""

    query: Float[Tensor, "heads n d"]
    key: Float[Tensor, "heads n d"]
    value: Float[Tensor, "heads n d"]

    def mapping(self) -> Float[Tensor, "heads n n"]:
        """P = softmax(Q·Kᵀ/√d), equation 2."""
        return (self.query @ self.key.mT).softmax(dim=-1)

    def projected(self, e: Float[Tensor, "k n"], f: Float[Tensor, "k n"]) -> Float[Tensor, "heads n d"]:
        """softmax(Q·(E·K)ᵀ/√d)·F·V, equation 7."""
        return (self.query @ (e @ self.key).mT).softmax(dim=-1) @ (f @ self.value)


def random_heads(n: int, d: int, generator: torch.Generator) -> Heads:
    """Q, K and V of one head of independent standard normal numbers, in float64: scores of variance 1."""
    query, key, value = torch.randn(3, 1, n, d, generator=generator, dtype=torch.float64)
    return Heads(query / math.sqrt(d), key, value)


def gaussian_projection(k: int, n: int, generator: torch.Generator) -> Float[Tensor, "k n"]:
    """R, independent N(0, 1/k): RᵀR is the identity on average."""
    return torch.randn(k, n, generator=generator, dtype=torch.float64) / math.sqrt(k)


def theorem2_matrices(r: Float[Tensor, "k n"], delta: float) -> tuple[Float[Tensor, "k n"], Float[Tensor, "k n"]]:
    """E = δ·R and F = e^(-δ)·R, the construction of Theorem 2; there δ = 1/2ⁿ."""
    return delta * r, math.exp(-delta) * r


def window_means(k: int, n: int) -> Float[Tensor, "k n"]:
    """E = F of mean pooling: rows have the sum 1."""
    windows = pooling_matrix(k, n).double()
    return windows / windows.sum(dim=1, keepdim=True)


def theorem1_errors(mapping: Tensor, value: Tensor, exact: Tensor, approximate: Tensor) -> dict[str, Tensor]:
    """|P̃·w - P·w| by three measures, w being a column of V.

    `vector`: ‖P̃·w - P·w‖ / ‖P·w‖, what the theorem bounds by ε. `row`: |x̃·w - x·w| / |x·w| for each row x of P, what
    its proof bounds by ε. `corrected`: |x̃·w - x·w| / (‖x‖·‖w‖), what Johnson-Lindenstrauss bounds by ε.
    """
    error = (approximate - exact).abs()
    scale = mapping.norm(dim=-1, keepdim=True) * value.norm(dim=-2, keepdim=True)
    vector = _relative(error.norm(dim=-2), exact.norm(dim=-2))
    return {"vector": vector, "row": _relative(error, exact.abs()), "corrected": _relative(error, scale)}


def theorem2_errors(mapping: Tensor, value: Tensor, exact: Tensor, approximate: Tensor) -> dict[str, Tensor]:
    """‖õ - o‖ for the output o of each query.

    `stated`: over ‖softmax(w)‖·‖V‖ (Frobenius), what the theorem bounds by ε; w is the row of scores. `relative`: over
    ‖o‖.
    """
    error = (approximate - exact).norm(dim=-1)
    scale = mapping.norm(dim=-1) * value.norm(dim=(-2, -1))[..., None]
    return {"stated": _relative(error, scale), "relative": _relative(error, exact.norm(dim=-1))}


def theorem1_variance_dim(mapping: Tensor, value: Tensor, exact: Tensor) -> Float[Tensor, "heads d"]:
    """1 + ‖P‖²·‖w‖²/‖P·w‖² for each column w of V; divided by ε², the k for which the mean square error is ε².

    The variance of x·RᵀR·w is (‖x‖²‖w‖² + (x·w)²)/k for each row x of P; this is its sum over rows, relative to ‖P·w‖².
    """
    size = mapping.square().sum(dim=(-2, -1))[..., None]
    return 1 + size * value.square().sum(dim=-2) / exact.square().sum(dim=-2)


def _relative(error: Tensor, scale: Tensor) -> Tensor:
    return torch.where(error == 0, 0.0, error / scale)


class Meter:
    """Statistics of the errors of each theorem, method and k: geometric means, and shares of errors of at most ε."""

    def __init__(self, epsilons: list[float]) -> None:
        self._epsilons = epsilons
        self._sums: dict[tuple[int, str, int], dict[str, Tensor]] = {}

    def add(self, theorem: int, method: str, k: int, errors: dict[str, Tensor]) -> None:
        """Add errors, by measure."""
        sums = self._sums.setdefault((theorem, method, k), {})
        for measure, values in errors.items():
            logs = values.double().clamp(1e-16, 1e16).log()  # relative errors of zero outputs are infinite
            counts = [(values <= epsilon).sum() for epsilon in self._epsilons]
            new = torch.tensor([values.numel(), logs.sum(), logs.square().sum(), *counts], dtype=torch.float64)
            sums[measure] = sums.get(measure, 0) + new

    def records(self) -> Iterator[Record]:
        """The statistics of each theorem, method and k, the smallest k first."""
        for (theorem, method, k), sums in sorted(self._sums.items(), key=lambda item: item[0][2]):
            entry: Record = {"theorem": theorem, "method": method, "k": k}
            for measure, total in sums.items():
                count, logs, squares, *held = total.tolist()
                deviation = math.sqrt(max(0.0, squares / count - (logs / count) ** 2))
                error, factor = round(math.exp(logs / count), 6), round(math.exp(deviation), 3)
                entry[measure] = {"error": error, "factor": factor, "held": [round(share / count, 4) for share in held]}
            yield entry


def measure(settings: Settings, results: Results) -> None:
    """Add the errors on each kind of attention."""
    if settings.model is not None and results.find(attention="model") is None:
        _try("model", _heads_of_model(settings), max(1, settings.draws // _DRAWS_RATIO), settings, results)
    for n in settings.lengths:
        if results.find(attention="random", n=n) is None:
            generator = torch.Generator().manual_seed(settings.seed)
            heads = [random_heads(n, settings.head_dim, generator) for _ in range(_RANDOM_MATRICES)]
            _try("random", heads, settings.draws, settings, results)


def _heads_of_model(settings: Settings) -> list[Heads]:
    """The heads of some layers of a model on some texts, for each layer and text."""
    files = text_files(settings.text_file, field="text_file")
    model, tokenizer, *_ = load_model(settings.model or "", AutoModel, "an encoder")
    n = sequence_length(model, tokenizer, None)
    ids = list(islice(sequences(files, tokenizer, seq_len=n), settings.samples))
    if len(ids) < settings.samples:
        expected = f"{settings.samples} sequences of {n} tokens"
        raise InputError(f"text_file: expected {expected}, got {len(ids)} in {files.name}")
    texts = [_heads_of_layers(model, torch.tensor([sequence])) for sequence in ids]
    count = len(texts[0])
    layers = settings.layers or sorted({round(share * (count - 1)) for share in (0, 0.5, 1)})
    if max(layers) >= count:
        raise InputError(f"layers: expected layers of the {model.config.model_type}, got {max(layers)}")
    return [Heads(*(each.double() for each in text[layer])) for layer in layers for text in texts]


@torch.no_grad()
def _heads_of_layers(model: PreTrainedModel, input_ids: Tensor) -> list[Heads]:
    """Q, K and V of each layer on one sequence."""
    layers: list[Heads] = []

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **more: Any
    ) -> Any:
        layers.append(Heads(query[0] * scaling, key[0], value[0]))
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **more)

    AttentionInterface.register(_RECORDING, attend)
    AttentionMaskInterface.register(_RECORDING, sdpa_mask)
    model.set_attn_implementation(_RECORDING)
    model(input_ids)
    if not layers:
        raise InputError(f"model: expected full attention by transformers' interface, got a {model.config.model_type}")
    return layers


def _dims(n: int) -> list[int]:
    """k from 8 to n in powers of two."""
    return sorted({min(n, 8 << power) for power in range(n.bit_length())})


def _try(name: str, attention: list[Heads], draws: int, settings: Settings, results: Results) -> None:
    """Add the records of one kind of attention."""
    _, n, d = attention[0].query.shape
    generator = torch.Generator().manual_seed(settings.seed)
    meter, variances = Meter(settings.epsilons), []
    for heads in attention:
        mapping = heads.mapping()
        exact = mapping @ heads.value
        variances.append(theorem1_variance_dim(mapping, heads.value, exact).flatten())
        for theorem, method, k, approximate in _outputs(heads, mapping, draws, settings, generator):
            errors = theorem1_errors if theorem == 1 else theorem2_errors
            meter.add(theorem, method, k, errors(mapping, heads.value, exact, approximate))
    key = {"attention": name, "n": n, "d": d}
    results.content["records"] += [key | entry for entry in meter.records()]
    variance_dim = float(torch.cat(variances).nan_to_num(posinf=math.inf).median())
    results.add(**key, theorem=1, method="k by variance", matrices=len(variances), variance_dim=variance_dim)


def _outputs(
    heads: Heads, mapping: Tensor, draws: int, settings: Settings, generator: torch.Generator
) -> Iterator[tuple[int, str, int, Tensor]]:
    """Theorem, method and k of each approximation of P·V, and its output."""
    value, (n, d) = heads.value, heads.value.shape[-2:]
    left, sigma, right = torch.linalg.svd(mapping, full_matrices=False)
    for theorem in (1, 2):
        yield theorem, "answer 0", 0, torch.zeros_like(value)
        yield theorem, "mean of V", 1, value.mean(dim=-2, keepdim=True).expand_as(value)
        for k in _dims(n):
            yield theorem, "SVD", k, (left[..., :k] * sigma[..., None, :k]) @ (right[..., :k, :] @ value)
    for k in _dims(n):
        windows, means = pooling_matrix(k, n).double(), window_means(k, n)  # the first has orthonormal rows
        yield 1, "pooling", k, mapping @ (windows.mT @ (windows @ value))
        yield 2, "pooling", k, heads.projected(means, means)
    dims = {*_dims(n), *(theorem1_dim(n, epsilon) for epsilon in settings.epsilons)}
    dims |= {theorem2_dim(n, d, epsilon) for epsilon in settings.epsilons}
    above = {round(n * 2 ** (step / 2)) for step in range(1, 2 * round(math.log2(MOST_TIMES_N)) + 1)}
    for k in sorted(dims | above):
        for _ in range(draws if k <= n else max(1, draws // _DRAWS_RATIO)):
            r = gaussian_projection(k, n, generator)
            yield 1, FIRST, k, mapping @ (r.mT @ (r @ value))
            if k in dims:
                yield 2, "proof, δ = 1", k, heads.projected(*theorem2_matrices(r, 1.0))
                yield 2, SECOND, k, heads.projected(*theorem2_matrices(r, 2.0**-n))


def of_case(content: Record, attention: str, n: int, theorem: int) -> dict[str, list[Record]]:
    """The records of one kind of attention and one theorem by method, the smallest k first."""
    methods: dict[str, list[Record]] = {}
    for record in content["records"]:
        if (record["attention"], record["n"], record["theorem"]) == (attention, n, theorem) and "k" in record:
            methods.setdefault(record["method"], []).append(record)
    return methods


def needed(records: list[Record], name: str, place: int) -> int | None:
    """The smallest k such that the bound holds with the confidence for it and all larger ones tried."""
    least = None
    for record in reversed(records):
        if record[name]["held"][place] < CONFIDENCE:
            break
        least = record["k"]
    return least


_FIRST_TABLE = f"""## Theorem 1

P̃ = P·Rᵀ·R with the k of the theorem.
Promised: its lower bound of the probability, 1 - 2n·exp(-(ε² - ε³)k/4); corrected: with 4n, as Johnson-Lindenstrauss
gives for inner products; below 0 it is vacuous.
Held: share of the columns w of V with ‖P̃w - Pw‖ ≤ ε‖Pw‖; of entries with |x̃w - xw| ≤ ε|xw|, x a row of P, as in the
proof; and with |x̃w - xw| ≤ ε‖x‖‖w‖.
k needed: the smallest k tried, up to {MOST_TIMES_N}n, from which on {CONFIDENCE:.0%} of the columns held; k by
variance: the k for which the mean square of the error is ε², median over columns. k above n saves nothing.
In brackets: ratio to the theorem's."""
_SECOND_TABLE = """## Theorem 2

E = δR and F = e^(-δ)R, δ = 1/2ⁿ, with the k of the appendix.
Promised: its lower bound of the probability for one query, 1 - 2d·exp(-(ε² - ε³)k/4), or, where k is
9·ln d/(ε² - ε³), with the 4d² events of that proof.
Held: share of the queries with an error of at most ε‖softmax(w)‖‖V‖ (Frobenius), as in the theorem, and of at most
ε‖softmax(w)V‖. Answer 0: the share held, as in the theorem, by an output of zeros."""
_THIRD_TABLE = f"The smallest k tried for which {CONFIDENCE:.0%} of the queries have a relative error of at most ε:"


def table(content: Record) -> str:
    """The theorems' k and promises beside the errors, as Markdown."""
    settings = content["settings"]
    first, second, relative = [], [], []
    cases = [record for record in content["records"] if record["method"] == "k by variance"]
    for case in cases:
        n, d = case["n"], case["d"]
        ones, twos = (of_case(content, case["attention"], n, theorem) for theorem in (1, 2))
        for place, epsilon in enumerate(settings["epsilons"]):
            row = {"attention": case["attention"], "n": f"{n:,}", "ε": epsilon}
            k = theorem1_dim(n, epsilon)
            (entry,) = (each for each in ones[FIRST] if each["k"] == k)
            least = needed([each for each in ones[FIRST] if each["k"] <= MOST_TIMES_N * n], "vector", place)
            by_variance = case["variance_dim"] / epsilon**2
            first.append(
                {
                    **row,
                    "k": f"{k:,}",
                    "promised": f"{1 - union_bound(2 * n, k, epsilon):.2f}",
                    "corrected": f"{1 - union_bound(4 * n, k, epsilon):.2f}",
                    "error": f"{entry['vector']['error']:.2f}",
                    "columns held": f"{entry['vector']['held'][place]:.3f}",
                    "entries held": f"{entry['row']['held'][place]:.3f}",
                    "with ‖x‖‖w‖": f"{entry['corrected']['held'][place]:.3f}",
                    "k needed": "none" if least is None else f"{least:,} ({least / k:.1f})",
                    "k by variance": f"{by_variance:,.0f} ({by_variance / k:.1f})",
                }
            )
            k = theorem2_dim(n, d, epsilon)
            (entry,) = (each for each in twos[SECOND] if each["k"] == k)
            second.append(
                {
                    **row,
                    "k": f"{k:,}",
                    "promised": f"{1 - theorem2_failure(n, d, epsilon):.2f}",
                    "error": f"{entry['relative']['error']:.2f}",
                    "held": f"{entry['stated']['held'][place]:.3f}",
                    "answer 0": f"{twos['answer 0'][0]['stated']['held'][place]:.3f}",
                    "held, relative": f"{entry['relative']['held'][place]:.3f}",
                }
            )
            ks = {method: needed(records, "relative", place) for method, records in twos.items()}
            relative.append(row | {method: "none" if k is None else f"{k:,}" for method, k in ks.items()})
    tables = (markdown(rows) for rows in (first, second, relative))
    about = f"Random: Q, K and V of independent standard normal numbers, d {settings['head_dim']}. "
    if settings["model"] is not None:
        text = ", ".join(settings["text_file"] or ["the Python standard library"])
        about += f"Model: `{settings['model']}` on {settings['samples']} sequences of {text}. "
    parts = ("# Theorems 1 and 2", about + "Errors are geometric means.", _FIRST_TABLE, _SECOND_TABLE, _THIRD_TABLE)
    return "\n\n".join((*parts[:2], *(part for pair in zip(parts[2:], tables, strict=True) for part in pair)))


_ROWS = (  # theorem, measure, least error drawn, label
    (1, "vector", 3e-3, "Theorem 1's error\n‖P̃w − Pw‖ / ‖Pw‖"),
    (2, "stated", 3e-4, "Theorem 2's error\nover ‖softmax(w)‖·‖V‖"),
    (2, "relative", 3e-3, "the same error\nover ‖softmax(w)V‖"),
)
_STYLES = {
    FIRST: ("tab:red", "o", "as in the proof"),
    SECOND: ("tab:red", "o", "as in the proof"),
    "pooling": ("tab:blue", "s", "pooling"),
    "SVD": ("black", "x", "best matrix of rank k"),
    "answer 0": ("grey", ":", "answer 0"),
    "mean of V": ("grey", "-.", "mean of V"),
}


def draw(content: Record) -> Figure:
    """Plot the errors against k: a row for each measure, a column for each kind of attention."""
    cases = [record for record in content["records"] if record["method"] == "k by variance"]
    if len(cases) > 3:  # the extremes of random attention, and the model
        cases = [cases[0], *cases[-2:]] if cases[-1]["attention"] == "model" else [cases[0], *cases[-1:]]
    figure, grid = new_figure((3.6 * len(cases) + 0.6, 8.5), len(_ROWS), len(cases), squeeze=False)
    handles: dict[str, Any] = {}
    for row, (theorem, name, least, label) in enumerate(_ROWS):
        for axes, case in zip(grid[row], cases, strict=True):
            for method, records in of_case(content, case["attention"], case["n"], theorem).items():
                if method not in _STYLES:
                    continue
                color, marker, text = _STYLES[method]
                errors = [record[name] for record in records]
                if method in ("answer 0", "mean of V"):
                    handles[text] = axes.axhline(errors[0]["error"], color=color, linestyle=marker, label=text)
                    continue
                ks, means = [record["k"] for record in records], [max(error["error"], least) for error in errors]
                (handles[text],) = axes.plot(ks, means, color=color, marker=marker, markersize=4, label=text)
                low = [max(error["error"] / error["factor"], least) for error in errors]
                high = [max(error["error"] * error["factor"], least) for error in errors]
                axes.fill_between(ks, low, high, color=color, alpha=0.12, linewidth=0)
            _draw_axes(axes, case["n"], least)
            for epsilon in content["settings"]["epsilons"] if name != "relative" else ():
                n, d = case["n"], case["d"]
                k = theorem1_dim(n, epsilon) if theorem == 1 else theorem2_dim(n, d, epsilon)
                text = "ε of the theorem, from its k on"
                (handles[text],) = axes.plot(
                    [k, k, 4 * k], [least, epsilon, epsilon], "--", color="tab:purple", lw=1, label=text
                )
                axes.text(k, 1.08 * epsilon, f" ε {epsilon:g}", color="tab:purple", fontsize=7)
        grid[row, 0].set_ylabel(label)
    for axes, case in zip(grid[0], cases, strict=True):
        axes.set_title(f"attention: {case['attention']}, n {case['n']:,}, d {case['d']}", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("k")
    figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _draw_axes(axes: Axes, n: int, least: float) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(xlim=(6, 10 * max(n, 1024)), ylim=(least, 30))
    axes.axvline(n, color="grey", linewidth=0.8)
    axes.text(n, 20, " k = n", fontsize=7, color="grey")
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", labelsize=8)
    axes.label_outer()
    show_grid(axes)


if __name__ == "__main__":
    run(Settings, measure, table, draw)
