"""Measurements: cases alternate and stay within their seconds, reused freed memory counts, encoders of equal size."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from linformer_cli.errors import InputError, OutOfMemoryError
from linformer_kit.analysis import measure
from linformer_kit.analysis.measure import Encoder, build, random_ids, runner

CPU = torch.device("cpu")


def small(kind: measure.Kind, **fields: object) -> Encoder:
    sizes = {"num_hidden_layers": 1, "hidden_size": 30, "num_attention_heads": 5, "intermediate_size": 44}
    return Encoder(kind=kind, seq_len=37, **sizes | fields)


def test_cases_take_turns_and_stay_within_their_seconds(monkeypatch):
    """Ten seconds are three runs of 3 s, of which the first is a warm-up; a single run counts."""
    now, log = [0.0], []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def case(name, seconds):
        def run():
            now[0] += seconds
            log.append(name)

        return run

    cases = {name: case(name, seconds) for name, seconds in (("one", 1.0), ("three", 3.0), ("age", 50.0))}
    timings = measure.interleaved(cases, device=CPU, repetitions=4)
    assert timings == {"one": [1.0] * 4, "three": [3.0] * 2, "age": [50.0]}
    assert log == ["one", "three", "age", "one", "three", "one", "three", "one", "one"]


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set is read from /proc")
def test_what_was_freed_before_counts_again():
    pieces = [torch.ones(25_000) for _ in range(800)]
    last = pieces[-1]  # above the others on the heap, which therefore keeps their memory
    del pieces
    assert 60_000_000 < measure.peak_bytes(lambda: [torch.ones(25_000) for _ in range(800)], CPU) < 100_000_000
    assert last.sum() == 25_000


def test_memory_of_a_system_that_does_not_report_it(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_CLEAR_REFS", tmp_path / "none")
    expected = r"memory: expected Linux \(for the resident set in /proc\) or an accelerator, got neither"
    with pytest.raises(InputError, match=expected):
        measure.peak_bytes(list, CPU)


@pytest.mark.e2e
def test_a_process_that_is_killed_is_memory_that_ran_out():
    with pytest.raises(OutOfMemoryError, match="a process was killed, most likely because memory ran out"):
        measure.in_fresh_process(os._exit, 9)


@pytest.mark.parametrize("kind, k", [("linformer", 13), ("full", None), ("roberta", None), ("eager", None)])
def test_encoders_are_of_equal_size(kind, k):
    encoder = small(kind, projected_dim=k)
    model = build(encoder, CPU, torch.float32)
    embeddings = (1000 + 37 + (3 if k is None and kind != "full" else 0)) * 30 + 60
    layer = 4 * (30 * 30 + 30) + 2 * 30 * 44 + 44 + 30 + 4 * 30
    assert abs(sum(p.numel() for p in model.parameters()) - embeddings - layer - (k or 0) * 37) <= 60
    output = runner(model, random_ids(encoder, 3, CPU), "forward")()
    assert output.shape == (3, 37, 30) and not model.training


def test_training_keeps_no_gradients():
    encoder = small("linformer", projected_dim=13)
    model = build(encoder, CPU, torch.float32, "train")
    seen = []
    linear = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
    linear.register_full_backward_hook(lambda *_: seen.append(model.training))
    runner(model, random_ids(encoder, 2, CPU), "train")()
    assert seen == [True] and all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set is read from /proc")
def test_memory_of_training_holds_activations(monkeypatch):
    monkeypatch.setattr(measure, "in_fresh_process", lambda function, *arguments: function(*arguments))
    peaks = {mode: measure.memory_of(small("full"), 1024, mode, CPU, torch.float32) for mode in ("forward", "train")}
    assert peaks["train"] > 1024 * 37 * 30 * 4 * 5 > 0 and peaks["train"] > peaks["forward"]
