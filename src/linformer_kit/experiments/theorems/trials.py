"""`linformer theorems`: experiments on Theorems 1 and 2 of the paper, with random attention and that of a model.

Axes as in `statements`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModel, PreTrainedModel

from linformer_kit.errors import InputError
from linformer_kit.experiments.experiment import check_output, header, show, write_at_once
from linformer_kit.experiments.spectrum.capture import LayerAttention, visit_attention
from linformer_kit.experiments.spectrum.texts import find_texts, sequence_length, sequences
from linformer_kit.experiments.theorems.fitted import fit_projections
from linformer_kit.experiments.theorems.meter import Meter, Trial
from linformer_kit.experiments.theorems.statements import (
    Heads,
    LowRank,
    gaussian_projection,
    random_heads,
    theorem1_dim,
    theorem1_variance_dim,
    theorem2_dim,
    theorem2_matrices,
    union_bound,
    window_means,
)
from linformer_kit.interop.loading import load_model
from linformer_kit.operator.projections.starts import pooling_matrix
from linformer_kit.report.theorems import MOST_TIMES_N, write_theorems_report
from linformer_kit.settings import LARGEST_SEED, TheoremsSettings, portable

CONFIDENCE = 0.9  # share of columns, or of queries, that counts as "the bound holds"
_RANDOM_MATRICES = 3
_SMALLEST_K = 8
_DRAWN_LAYERS = 3
_DRAWS_RATIO = 4  # R is drawn this many times more often for random matrices, which are few, and for k up to n
_STEPS_PER_OCTAVE = 2  # of the ks above n
_LONGEST, _WIDEST, _LARGEST_DIM = 16384, 4096, 200_000
_CPU = torch.device("cpu")


class Case(NamedTuple):
    """Attention to test the theorems on, and a function that fits E and F of the same heads on other texts."""

    name: str
    heads: list[Heads]
    matrices: int
    n: int
    d: int
    draws: int
    fitted: Callable[[int], list[tuple[Tensor, Tensor]]] | None = None


def main(settings: TheoremsSettings) -> None:
    """Measure, write, print."""
    text, folder, interrupted = theorems(settings)
    show(text, folder, interrupted=interrupted)


def theorems(settings: TheoremsSettings) -> tuple[str, Path, bool]:
    """Test both theorems, and write `theorems.json`, `theorems.md`, and figures.

    Ctrl-C ends the measurement; the results of completed kinds of attention are written.

    Returns:
        The Markdown text, the folder, and whether the measurement was interrupted by Ctrl-C.

    Raises:
        InputError: for settings, texts or a model that cannot be used; nothing is written then.
    """
    check_output(settings.output_dir)
    _check(settings)
    generator = torch.Generator().manual_seed(settings.seed)
    started = time.perf_counter()
    cases = [_random_case(settings, n, generator) for n in settings.lengths]
    recorded = portable(settings)
    if settings.model is not None:
        cases.append(_model_case(settings, generator))
        recorded["text"] = find_texts(settings).name
    results = header("theorems", device=_CPU, settings=recorded)
    measured: list[dict[str, Any]] = []
    try:
        for case in cases:
            measured.append(_try(case, settings, generator))
    except KeyboardInterrupt:
        if not measured:
            raise
    interrupted = len(measured) < len(cases)
    results |= {
        "cases": measured,
        "appendix": [_appendix(n, settings.head_dim, generator) for n in ([] if interrupted else settings.lengths)],
        "complete": not interrupted,
        "seconds": round(time.perf_counter() - started, 1),
    }
    text, folder = write_at_once(settings.output_dir, "theorems", partial(write_theorems_report, results))
    return text, folder, interrupted


def _check(settings: TheoremsSettings) -> None:
    for name in ("lengths", "epsilons"):
        if not getattr(settings, name):
            raise InputError(f"{name}: expected at least one, got none")
    for name, least, most in (
        ("lengths", 2, _LONGEST),
        ("head_dim", 2, _WIDEST),
        ("draws", 1, 10_000),
        ("fit_samples", 2, 10**9),
        ("fit_steps", 0, 10**9),
        ("seed", 0, LARGEST_SEED),
    ):
        value = getattr(settings, name)
        for number in value if isinstance(value, list) else [value]:
            if not least <= number <= most:
                raise InputError(f"{name}: expected {least} to {most:,}, got {number}")
    for epsilon in settings.epsilons:
        k = theorem1_dim(max(settings.lengths), epsilon)
        if k > _LARGEST_DIM:
            raise InputError(f"epsilons: expected k of at most {_LARGEST_DIM:,} (Theorem 1), got {k:,} with {epsilon}")
    for name in ("text_file", "layers", "seq_len"):
        value = getattr(settings, name)
        if settings.model is None and value is not None:
            raise InputError(f"{name}: expected none without model, got {value}")
    if settings.layers == []:
        raise InputError("layers: expected at least one, got none")


def _random_case(settings: TheoremsSettings, n: int, generator: torch.Generator) -> Case:
    heads = [random_heads(1, n, settings.head_dim, generator) for _ in range(_RANDOM_MATRICES)]
    return Case("random", heads, _RANDOM_MATRICES, n, settings.head_dim, settings.draws)


def _model_case(settings: TheoremsSettings, generator: torch.Generator) -> Case:
    """Some layers of a model on some texts, with E and F fitted to the same layers on other texts."""
    files = find_texts(settings)
    model, tokenizer = load_model(settings.model or "", AutoModel, "an encoder")
    n = sequence_length(settings, model, tokenizer)
    needed = settings.samples + (settings.fit_samples if settings.fit_steps else 0)
    ids = list(islice(sequences(files, tokenizer, seq_len=n, packing=True), needed))
    if len(ids) < needed:
        raise InputError(f"text_file: expected {needed} sequences of {n} tokens, got {len(ids)} in {files.name}")
    by_layer = _heads_of(model, ids, settings.layers)
    tried = [
        Heads(*(states[text].double() for states in heads)) for heads in by_layer for text in range(settings.samples)
    ]
    others = [Heads(*(states[settings.samples :] for states in heads)) for heads in by_layer]

    def fitted(k: int) -> list[tuple[Tensor, Tensor]]:
        fits = [fit_projections(heads, k, steps=settings.fit_steps, generator=generator) for heads in others]
        return [(e.double(), f.double()) for e, f in fits for _ in range(settings.samples)]

    draws = max(1, settings.draws // _DRAWS_RATIO)
    matrices = len(tried) * tried[0].query.shape[0]
    return Case("model", tried, matrices, n, tried[0].value.shape[-1], draws, fitted if settings.fit_steps else None)


def _heads_of(model: PreTrainedModel, ids: list[list[int]], layers: list[int] | None) -> list[Heads]:
    """Queries, keys and values of some layers on all texts, `[texts, heads, n, d]` each."""
    found: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}

    def visit(layer: int, attention: LayerAttention) -> None:
        if attention.query is None or attention.key is None or attention.value is None:
            raise InputError(f"model: expected full attention with accessible queries, got a {model.config.model_type}")
        if layers is None or layer in layers:
            found.setdefault(layer, []).append((attention.query[0], attention.key[0], attention.value[0]))

    for sequence in ids:
        visit_attention(model, {"input_ids": torch.tensor([sequence])}, visit)
    if layers is None:
        last = max(found)
        spread = sorted({round(index * last / (_DRAWN_LAYERS - 1)) for index in range(_DRAWN_LAYERS)})
    else:
        spread = list(dict.fromkeys(layers))
        for layer in spread:
            if layer not in found:
                raise InputError(f"layers: expected layers of the {model.config.model_type}, got {layer}")
    return [Heads(*map(torch.stack, zip(*found[layer], strict=True))) for layer in spread]


def _dims(n: int) -> list[int]:
    """k from 8 to n in powers of two."""
    return sorted({min(n, _SMALLEST_K << power) for power in range(n.bit_length())})


def _try(case: Case, settings: TheoremsSettings, generator: torch.Generator) -> dict[str, Any]:
    n, d = case.n, case.d
    bounds = [_bounds(n, d, epsilon) for epsilon in settings.epsilons]
    dims = _dims(n)
    meter = Meter(settings.epsilons)
    dims_to_fit = dims[:-1]  # with k = n the start is exact
    fitting = tqdm(dims_to_fit, desc="Fitting E and F", unit=" k", dynamic_ncols=True, delay=2) if case.fitted else ()
    fitted = {k: case.fitted(k) for k in fitting if case.fitted}
    variances = []
    bar = tqdm(case.heads, desc=f"Attention of {case.name}, n {n}", unit=" texts", dynamic_ncols=True, delay=2)
    for number, heads in enumerate(bar):
        mapping = heads.mapping()
        exact = mapping @ heads.value
        variances.append(theorem1_variance_dim(mapping, heads.value, exact).flatten())
        trial = Trial(heads, mapping, exact, meter)
        low_rank = LowRank.of(mapping, heads.value)
        trial.record("both", "answer 0", 0, torch.zeros_like(exact))
        trial.record("both", "mean of V", 1, heads.value.mean(dim=-2, keepdim=True).expand_as(exact))
        for k in dims:
            trial.record("both", "SVD", k, low_rank.cut(k))
            means = window_means(k, n)
            windows = pooling_matrix(k, n).double()  # rows of norm 1: RᵀR becomes a projection
            trial.record("theorem1", "pooling", k, mapping @ (windows.mT @ (windows @ heads.value)))
            trial.record("theorem2", "pooling", k, heads.projected(means, means))
            if k in fitted:
                trial.record("theorem2", "fitted E, F", k, heads.projected(*fitted[k][number]))
        _try_the_proofs(trial, case, bounds, generator)
    return {
        "name": case.name,
        "n": n,
        "d": d,
        "matrices": case.matrices,
        "draws": case.draws,
        "bounds": bounds,
        "confidence": CONFIDENCE,
        "variance_dim": float(torch.cat(variances).nan_to_num(posinf=math.inf).median()),
        **meter.results(),
    }


def _try_the_proofs(trial: Trial, case: Case, bounds: list[dict[str, Any]], generator: torch.Generator) -> None:
    """Record the errors of R: for k up to n, for the k of the theorems, and for Theorem 1 up to 8n."""
    n = case.n
    dims = {*_dims(n), *(bound[name] for bound in bounds for name in ("theorem1_dim", "theorem2_dim"))}
    steps = _STEPS_PER_OCTAVE * round(math.log2(MOST_TIMES_N))
    above = {round(n * 2 ** (step / _STEPS_PER_OCTAVE)) for step in range(1, steps + 1)}
    for k in sorted(dims | above):
        for _ in range(case.draws if k <= n else max(1, case.draws // _DRAWS_RATIO)):
            r = gaussian_projection(k, n, generator)
            trial.record("theorem1", "R, as in the proof", k, trial.mapping @ (r.mT @ (r @ trial.heads.value)))
            for label, delta in DELTAS.items() if k in dims else ():
                trial.record("theorem2", label, k, trial.heads.projected(*theorem2_matrices(r, delta(n))))


# δ of Theorem 2: larger ones, for which the output depends on the scores, and that of the proof.
DELTAS: dict[str, Callable[[int], float]] = {
    "proof, δ = 1": lambda n: 1.0,
    "proof, δ = 1/n": lambda n: 1 / n,
    "proof, δ = 1/2ⁿ": lambda n: 2.0**-n,
}


def _bounds(n: int, d: int, epsilon: float) -> dict[str, Any]:
    """The k of the theorems and their bounds of the failure probability; for Theorem 2, at one query.

    If its k is 5·ln n/(ε² - ε³), the bound must hold for d columns of V; if it is 9·ln d/(ε² - ε³), which has
    no n, the proof uses 2·d rows of P instead, each with d columns.
    """
    first, second = theorem1_dim(n, epsilon), theorem2_dim(n, d, epsilon)
    return {
        "epsilon": epsilon,
        "theorem1_dim": first,
        "theorem1_failure": union_bound(2 * n, first, epsilon),
        "theorem1_failure_corrected": union_bound(4 * n, first, epsilon),
        "theorem2_dim": second,
        "theorem2_failure": union_bound(4 * d**2 if second < first else 2 * d, second, epsilon),
    }


def _appendix(n: int, d: int, generator: torch.Generator) -> dict[str, Any]:
    """Single steps of the proofs, measured for random attention of n tokens."""
    heads = random_heads(1, n, d, generator)
    mapping, value = heads.mapping(), heads.value
    exact = mapping @ value
    w, pw = value[0, :, :1], exact[0, :, :1]
    rank_one = pw @ w.mT / w.square().sum()
    rank_d = exact @ torch.linalg.pinv(value)
    k = theorem2_dim(n, d, 0.5)
    weights = (heads.query @ (2.0**-n * gaussian_projection(k, n, generator) @ heads.key).mT).softmax(dim=-1)
    scores = heads.query @ heads.key.mT
    return {
        "n": n,
        "d": d,
        "rank_one_error": float((rank_one @ w - pw).norm() / pw.norm()),
        "rank_d_error": float((rank_d @ value - exact).norm() / exact.norm()),
        "rank_of_scores": int(torch.linalg.matrix_rank(scores)[0]),
        "rank_of_exponential": int(torch.linalg.matrix_rank(scores.exp())[0]),
        "delta": 2.0**-n,
        "largest_deviation_from_uniform": float((weights * k - 1).abs().max()),
    }
