"""The theorems' numbers by hand, their constructions, and properties that all experiments must have."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from linformer_kit import InputError, theorem1_dim, theorem2_dim
from linformer_kit.commands.cli import main
from linformer_kit.experiments.spectrum.capture import LayerAttention
from linformer_kit.experiments.theorems import trials
from linformer_kit.experiments.theorems.fitted import fit_projections
from linformer_kit.experiments.theorems.meter import Meter
from linformer_kit.experiments.theorems.statements import (
    Heads,
    LowRank,
    gaussian_projection,
    random_heads,
    theorem1_errors,
    theorem1_variance_dim,
    theorem2_errors,
    theorem2_matrices,
    union_bound,
    window_means,
)
from linformer_kit.report.theorems import _needed
from linformer_kit.settings import TheoremsSettings
from tests.conftest import fail, write_corpus, write_model


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_dimensions_by_hand():
    assert theorem1_dim(512, 0.5) == math.ceil(5 * math.log(512) / (0.25 - 0.125)) == 250
    assert theorem2_dim(512, 64, 0.5) == 250  # 5 ln 512 = 31.2 is less than 9 ln 64 = 37.4
    assert theorem2_dim(65536, 64, 0.5) == math.ceil(9 * math.log(64) / 0.125) == 300


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theorem1_dim(1, 0.5), "n: expected 2 or more, got 1"),
        (lambda: theorem1_dim(512, 0), "epsilon: expected more than 0 and less than 1, got 0"),
        (lambda: theorem1_dim(512, 1), "epsilon: expected more than 0 and less than 1, got 1"),
        (lambda: theorem2_dim(512, 1, 0.5), "d: expected 2 or more, got 1"),
        (lambda: theorem2_dim(1, 64, 0.5), "n: expected 2 or more, got 1"),
    ],
)
def test_out_of_range(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_the_union_bound_of_theorem_1_falls_slowly():
    """2n·exp(-5/4·ln n) = 2·n^(-1/4), were k no integer."""
    for n in (512, 65536):
        assert union_bound(2 * n, theorem1_dim(n, 0.5), 0.5) == pytest.approx(2 * n**-0.25, rel=0.05)
    assert union_bound(4 * 64**2, theorem2_dim(65536, 64, 0.5), 0.5) > 1  # says nothing


def test_windows_are_means():
    means = window_means(3, 7)
    by_hand = [[1 / 2, 1 / 2, 0, 0, 0, 0, 0], [0, 0, 1 / 2, 1 / 2, 0, 0, 0], [0, 0, 0, 0, 1 / 3, 1 / 3, 1 / 3]]
    torch.testing.assert_close(means, torch.tensor(by_hand, dtype=torch.float64))
    assert torch.equal(window_means(5, 5), torch.eye(5).double())


def test_attention_with_identities_is_full_attention(generator):
    heads = random_heads(3, 23, 7, generator)
    identity = torch.eye(23, dtype=torch.float64)
    torch.testing.assert_close(heads.projected(identity, identity), heads.mapping() @ heads.value)


@pytest.mark.e2e
def test_rtr_is_the_identity_on_average_with_the_stated_variance(generator):
    """E[x·RᵀR·w] = x·w, and its variance is (‖x‖²‖w‖² + (x·w)²)/k."""
    n, k = 31, 17
    x, w = torch.randn(2, n, generator=generator, dtype=torch.float64)
    products = torch.stack([(r @ x) @ (r @ w) for r in (gaussian_projection(k, n, generator) for _ in range(20000))])
    variance = ((x @ x) * (w @ w) + (x @ w) ** 2) / k
    assert abs(products.mean() - x @ w) < 4 * (variance / 20000).sqrt()
    assert products.var() == pytest.approx(float(variance), rel=0.05)


def test_singular_values_cut_anywhere(generator):
    heads = random_heads(2, 19, 7, generator)
    mapping = heads.mapping()
    u, sigma, vh = np.linalg.svd(mapping.numpy())
    for k in (1, 5, 19):
        expected = (u[:, :, :k] * sigma[:, None, :k]) @ vh[:, :k] @ heads.value.numpy()
        np.testing.assert_allclose(LowRank.of(mapping, heads.value).cut(k).numpy(), expected, atol=1e-12)


def test_errors_by_hand():
    mapping = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]], dtype=torch.float64)
    value = torch.tensor([[[4.0, 0.0], [2.0, 3.0]]], dtype=torch.float64)
    exact = mapping @ value  # [[3, 1.5], [2, 3]]
    approximate = exact + torch.tensor([[[0.3, 0.0], [0.4, 0.3]]], dtype=torch.float64)
    first = theorem1_errors(mapping, value, exact, approximate)
    expected = [0.5 / math.sqrt(13), 0.3 / math.sqrt(1.5**2 + 9)]
    torch.testing.assert_close(first.vector, torch.tensor([expected], dtype=torch.float64))
    torch.testing.assert_close(first.row[0, :, 0], torch.tensor([0.1, 0.2], dtype=torch.float64))
    corrected = [0.3 / (math.sqrt(0.5) * math.sqrt(20)), 0.4 / math.sqrt(20)]
    torch.testing.assert_close(first.corrected[0, :, 0], torch.tensor(corrected, dtype=torch.float64))
    second = theorem2_errors(mapping, value, exact, approximate)
    torch.testing.assert_close(second.relative, torch.tensor([[0.3 / math.sqrt(11.25), 0.5 / math.sqrt(13)]]).double())
    stated = [0.3 / (math.sqrt(0.5) * math.sqrt(29)), 0.5 / math.sqrt(29)]
    torch.testing.assert_close(second.stated, torch.tensor([stated], dtype=torch.float64))


def test_the_construction_of_theorem_2_does_not_see_the_scores(generator):
    """With δ = 1/2ⁿ all slots have equal weights for every query, so all queries have the same output."""
    heads = random_heads(1, 64, 11, generator)
    e, f = theorem2_matrices(gaussian_projection(13, 64, generator), 2.0**-64)
    outputs = heads.projected(e, f)
    torch.testing.assert_close(outputs, outputs[:, :1].expand_as(outputs), rtol=0, atol=1e-15)
    torch.testing.assert_close(outputs[0, 0], (f @ heads.value).mean(dim=1)[0])
    e, _ = theorem2_matrices(torch.ones(1, 1), 0.5)
    assert e.item() == 0.5 and theorem2_matrices(torch.ones(1, 1), 0.5)[1].item() == pytest.approx(math.exp(-0.5))


@pytest.mark.e2e
def test_fitted_projections_are_nearer_than_pooling(generator):
    """Attention to three positions only, one in each window: E and F can select them, means cannot."""
    texts, n, d = 40, 24, 5
    keys = torch.zeros(texts, 1, n, d)
    keys[..., 3] = -2.0
    keys[..., [3, 12, 17], :4] = 4 * torch.eye(3, 4)
    query = torch.randn(texts, 1, n, d, generator=generator)
    query[..., 3] = 1.0
    heads = Heads(query, keys, torch.randn(texts, 1, n, d, generator=generator))
    few, other = Heads(*(s[1:] for s in heads)), Heads(*(s[0] for s in heads))
    e, f = fit_projections(few, 3, steps=600, generator=generator, learning_rate=1e-2)
    assert e.shape == f.shape == (1, 3, n)
    exact, pooled = other.mapping() @ other.value, window_means(3, n).float()
    errors = [
        float(theorem2_errors(other.mapping(), other.value, exact, other.projected(*pair)).relative.mean())
        for pair in ((e, f), (pooled, pooled))
    ]
    assert errors[0] < 0.7 * errors[1]
    start, _ = fit_projections(few, 3, steps=0, generator=generator)
    assert torch.equal(start[0], pooled)


def run(out, *options: str) -> dict:
    main(
        [
            "theorems",
            "--output_dir",
            str(out),
            "--lengths",
            "32",
            "--head_dim",
            "7",
            "--draws",
            "4",
            "--epsilons",
            "0.5",
            "0.25",
            *options,
        ]
    )
    return json.loads((out / "theorems.json").read_text())


@pytest.fixture
def model(tmp_path):
    (tmp_path / "texts").mkdir()
    corpus = write_corpus(tmp_path / "texts")
    return [
        "--model",
        str(write_model(tmp_path / "model", (corpus / "0.txt").read_text(), attention="full")),
        "--text_file",
        str(corpus),
    ]


@pytest.mark.e2e
def test_the_experiments(tmp_path, model, drawn, capsys):
    results = run(tmp_path / "out", *model, "--samples", "2", "--fit_samples", "3", "--fit_steps", "3", "--layers", "1")
    out = capsys.readouterr().out
    assert (tmp_path / "out" / "theorems.md").read_text() in out
    assert all((tmp_path / "out" / f"theorem{number}.png").stat().st_size > 20_000 for number in (1, 2))
    random, of_model = results["cases"]
    assert (random["n"], random["d"], random["matrices"]) == (32, 7, 3)
    assert (of_model["n"], of_model["d"], of_model["matrices"]) == (23, 11, 2 * 3)  # two texts to try, three heads
    assert [bound["theorem1_dim"] for bound in random["bounds"]] == [theorem1_dim(32, 0.5), theorem1_dim(32, 0.25)]
    for case in results["cases"]:
        for theorem, measure in (("theorem1", "vector"), ("theorem2", "relative")):
            last = {method: entries[-1][measure] for method, entries in case[theorem].items()}
            assert last["SVD"]["error"] < 1e-6 and last["pooling"]["error"] < 1e-6  # at k = n
            assert last["answer 0"] == {"error": 1.0, "factor": 1.0, "held": [0.0, 0.0]}
        proof = case["theorem1"]["R, as in the proof"]
        assert {bound["theorem1_dim"] for bound in case["bounds"]} <= {entry["k"] for entry in proof}
        assert proof[0]["vector"]["error"] > proof[-1]["vector"]["error"]
        svd = [entry["vector"]["error"] for entry in case["theorem1"]["SVD"]]
        assert svd == sorted(svd, reverse=True)
    assert "fitted E, F" in of_model["theorem2"] and "fitted E, F" not in random["theorem2"]
    (appendix,) = results["appendix"]
    assert appendix["rank_one_error"] < 1e-12 and appendix["rank_d_error"] < 1e-12
    assert (appendix["rank_of_scores"], appendix["rank_of_exponential"]) == (7, 32)
    assert appendix["largest_deviation_from_uniform"] < 1e-6 and appendix["delta"] == 2.0**-32


@pytest.mark.e2e
def test_it_can_be_repeated(tmp_path):
    first, second = (run(tmp_path / name) for name in ("one", "two"))
    assert first["cases"] == second["cases"]
    other = run(tmp_path / "three", "--seed", "1")
    assert other["cases"] != first["cases"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilons", "0.5", "1.5"], "epsilon: expected more than 0 and less than 1, got 1.5"),
        (["--lengths", "1"], "lengths: expected 2 to 16,384, got 1"),
        (["--draws", "0"], "draws: expected 1 to 10,000, got 0"),
        (["--head_dim", "1"], "head_dim: expected 2 to 4,096, got 1"),
        (["--seed", "1" + "0" * 30], "seed: expected 0 to 4,294,967,295, got 1"),
        (["--epsilons", "1e-200"], "epsilon: expected more than 0 and less than 1, got 1e-200"),
        (["--epsilons", "1e-7"], "epsilons: expected k of at most 200,000 (Theorem 1), got"),
        (["--text_file", "nowhere"], "text_file: expected none without model, got ['nowhere']"),
        (["--layers", "1"], "layers: expected none without model, got [1]"),
        (["--fit_steps", "-1"], "fit_steps: expected 0 to 1,000,000,000, got -1"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, capsys, options, message):
    assert message in fail(capsys, "theorems", "--output_dir", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--samples", "0"], "samples: expected 1 to 1,000,000,000, got 0"),
        (["--fit_samples", "100000"], "text_file: expected 100004 sequences of 23 tokens, got"),
        (["--layers", "2"], "layers: expected layers of the linformer, got 2"),
    ],
)
def test_bad_input_with_a_model(tmp_path, model, capsys, options, message):
    assert message in fail(capsys, "theorems", "--output_dir", tmp_path / "out", "--lengths", "8", *model, *options)
    assert not (tmp_path / "out").exists()


def test_a_linear_model_is_refused(tmp_path, model, capsys):
    linear = write_model(tmp_path / "linear", (tmp_path / "texts" / "0.txt").read_text())
    error = fail(
        capsys,
        "theorems",
        "--output_dir",
        tmp_path / "out",
        "--lengths",
        "8",
        "--text_file",
        tmp_path / "texts",
        "--model",
        linear,
    )
    assert "model: expected full attention with accessible queries, got a linformer" in error


def test_what_is_counted_by_hand():
    meter = Meter([0.5, 0.1])
    for value in (0.05, 0.2, 0.5, 2.0):
        meter.add("theorem1", "method", 7, {"vector": torch.tensor([value])})
    (entry,) = meter.results()["theorem1"]["method"]
    logs = np.log([0.05, 0.2, 0.5, 2.0])
    assert entry["k"] == 7 and entry["vector"]["held"] == [0.75, 0.25]
    assert entry["vector"]["error"] == pytest.approx(math.exp(logs.mean()), rel=1e-4)
    assert entry["vector"]["factor"] == pytest.approx(math.exp(logs.std()), rel=1e-3)


def test_an_output_of_zero_has_no_infinite_mean():
    meter = Meter([0.5])
    mapping, zero = torch.eye(3, dtype=torch.float64)[None], torch.zeros(1, 3, 2, dtype=torch.float64)
    assert not theorem2_errors(mapping, zero, zero, zero).relative.any()
    meter.add("theorem1", "method", 7, theorem1_errors(mapping, zero, zero, zero + 1)._asdict())
    assert math.isfinite(meter.results()["theorem1"]["method"][0]["vector"]["error"])


def test_promises_by_hand():
    def failure(events: float, k: int) -> float:
        return events * math.exp(-0.125 * k / 4)

    short, long = trials._bounds(512, 64, 0.5), trials._bounds(65536, 64, 0.5)
    assert short["theorem1_failure"] == pytest.approx(failure(2 * 512, 250))
    assert short["theorem1_failure_corrected"] == pytest.approx(failure(4 * 512, 250))
    assert short["theorem2_failure"] == pytest.approx(failure(2 * 64, 250))  # k is that of Theorem 1
    assert long["theorem2_failure"] == pytest.approx(failure(4 * 64**2, 300))


def test_the_deltas_are_those_of_their_names():
    values = {name: delta(8) for name, delta in trials.DELTAS.items()}
    assert values == {"proof, δ = 1": 1.0, "proof, δ = 1/n": 1 / 8, "proof, δ = 1/2ⁿ": 1 / 256}


def test_the_k_by_variance_by_hand():
    """Uniform attention: 2 for values that are all alike; for others 1 + ‖w‖²/(n·mean²)."""
    mapping = torch.full((1, 4, 4), 1 / 4, dtype=torch.float64)
    value = torch.tensor([[[3.0, 1.0], [3.0, 2.0], [3.0, 3.0], [3.0, 6.0]]], dtype=torch.float64)
    found = theorem1_variance_dim(mapping, value, mapping @ value)
    torch.testing.assert_close(found, torch.tensor([[2.0, 1 + 50 / (4 * 9)]], dtype=torch.float64))


def test_the_k_by_variance_is_what_is_measured(generator):
    heads = random_heads(1, 16, 5, generator)
    mapping, k = heads.mapping(), 32
    exact = mapping @ heads.value
    squares = torch.zeros(5, dtype=torch.float64)
    for _ in range(4000):
        r = gaussian_projection(k, 16, generator)
        error = mapping @ (r.mT @ (r @ heads.value)) - exact
        squares += error.square().sum(dim=-2)[0] / exact.square().sum(dim=-2)[0] / 4000
    expected = theorem1_variance_dim(mapping, heads.value, exact)[0] / k
    torch.testing.assert_close(squares, expected, rtol=0.1, atol=0)


def test_the_smallest_k_from_which_on_the_bound_holds():
    def entries(*held: list[float]) -> list[dict]:
        return [{"k": 2**power, "vector": {"held": shares}} for power, shares in enumerate(held)]

    case = {"confidence": 0.9}
    found = entries([0.95, 0.0], [0.5, 0.0], [0.9, 0.2], [1.0, 0.95])
    assert _needed(found, "vector", 0, case) == 4 and _needed(found, "vector", 1, case) == 8
    assert _needed(entries([0.95], [0.5]), "vector", 0, case) is None


def test_e_and_f_are_fitted_to_other_texts_of_their_layer(tmp_path, model, monkeypatch):
    """Layers and texts are marked; each pair of matrices must have the marks of its own layer and of other texts."""
    heads = [Heads(*(torch.full((5, 3, 23, 11), 10.0 * layer) for _ in range(3))) for layer in (0, 1)]
    for of_layer in heads:
        for text in range(5):
            of_layer.query[text] += text
    monkeypatch.setattr(trials, "_heads_of", lambda *_: heads)

    def fit(few, k, *, steps, generator):
        marks = few.query[:, 0, 0, 0]
        return torch.full((3, k, 23), float(marks.min())), torch.full((3, k, 23), float(marks.max()))

    monkeypatch.setattr(trials, "fit_projections", fit)
    settings = TheoremsSettings(model=model[1], text_file=[model[3]], samples=2, fit_samples=3, fit_steps=1)
    case = trials._model_case(settings, torch.Generator())
    assert [float(tried.query[0, 0, 0]) for tried in case.heads] == [0, 1, 10, 11]
    assert [(float(e[0, 0, 0]), float(f[0, 0, 0])) for e, f in case.fitted(7)] == [(2, 4), (2, 4), (12, 14), (12, 14)]


def test_the_first_the_middle_and_the_last_layer(monkeypatch):
    def visit_five(model, inputs, visit):
        for layer in range(5):
            states = torch.full((1, 3, 7, 2), float(layer))
            visit(layer, LayerAttention(torch.eye(7).expand(1, 3, 7, 7), torch.ones(1, 7).bool(), *[states] * 3))

    monkeypatch.setattr(trials, "visit_attention", visit_five)
    found = trials._heads_of(None, [[5] * 7] * 2, None)
    assert [float(heads.key[1, 0, 0, 0]) for heads in found] == [0, 2, 4]
    found = trials._heads_of(None, [[5] * 7], [3, 1])
    assert [float(heads.key[0, 0, 0, 0]) for heads in found] == [3, 1]


def test_a_fit_is_never_worse_than_its_start_on_what_it_is_judged_by(generator):
    heads = Heads(*(torch.randn(9, 2, 12, 5, generator=generator) for _ in range(3)))
    e, f = fit_projections(heads, 4, steps=30, generator=generator, learning_rate=3.0)  # which destroys it
    start = window_means(4, 12).float().expand(2, 4, 12)
    judged = Heads(*(states[7:8] for states in heads))
    exact = judged.mapping() @ judged.value
    errors = [(judged.projected(*pair) - exact).square().sum() for pair in ((e, f), (start, start))]
    assert errors[0] <= errors[1]


@pytest.mark.e2e
def test_ctrl_c_keeps_the_kinds_that_are_done(tmp_path, monkeypatch, capsys):
    try_ = trials._try

    def interrupted(case, *arguments):
        if case.n == 16:
            raise KeyboardInterrupt
        return try_(case, *arguments)

    monkeypatch.setattr(trials, "_try", interrupted)
    with pytest.raises(SystemExit) as exit_:
        main(
            [
                "theorems",
                "--output_dir",
                str(tmp_path / "out"),
                "--lengths",
                "8",
                "16",
                "--head_dim",
                "5",
                "--draws",
                "1",
            ]
        )
    assert exit_.value.code == 130
    results = json.loads((tmp_path / "out" / "theorems.json").read_text())
    assert [case["n"] for case in results["cases"]] == [8] and results["complete"] is False
    assert "Interrupted" in capsys.readouterr().out
