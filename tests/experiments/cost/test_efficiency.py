"""Time and memory saved: the JSON of a tiny run, extrapolation, Ctrl-C, and rejected settings."""

from __future__ import annotations

import json

import pytest
import torch

from linformer_kit.commands.cli import main
from linformer_kit.errors import InputError
from linformer_kit.experiments.cost import efficiency, encoders, memory
from linformer_kit.experiments.cost.efficiency import compare
from linformer_kit.experiments.cost.encoders import Encoder, build, random_ids, runner
from linformer_kit.experiments.cost.memory import (
    extrapolate,
    largest,
    largest_batch,
    weight_bytes,
)
from linformer_kit.settings.bench import EfficiencySettings
from tests.report.bench_results import efficiency_results

CPU = torch.device("cpu")
TINY = ["--hidden_size=32", "--num_attention_heads=2", "--intermediate_size=64", "--dtype=float32", "--layers=1"]
TINY += ["--tokens=64", "--repetitions=2", "--square=32", "--copy_mib=1"]
SMALL = {"hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 29}


def run(folder, *arguments):
    main(["bench", "efficiency", *TINY, "--output_dir", str(folder), *arguments])
    return json.loads((folder / "efficiency.json").read_text())


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.e2e
def test_json_of_a_tiny_run(tmp_path, capsys, mode):
    results = run(tmp_path, "--mode", mode, "--memory=false", "--lengths", "64", "32", "--projected_dims", "8", "32")
    assert results["complete"] and results["settings"]["mode"] == mode
    assert results["environment"]["threads"] == torch.get_num_threads()
    names = ["full", "roberta", "eager"]
    assert [(entry["seq_len"], entry["name"]) for entry in results["baselines"]] == [
        (n, name) for n in (32, 64) for name in names
    ]
    cells = [(cell["seq_len"], cell["projected_dim"], cell["batch"]) for cell in results["cells"]]
    assert cells == [(32, 8, 2), (64, 8, 1), (64, 32, 1)]
    for cell in results["cells"]:
        assert cell["time"]["runs"] == 2 and cell["time"]["min_s"] > 0
        assert cell["bound_by"] in ("compute", "memory") and cell["share_of_machine"] > 0
        assert cell["share_of_products"] > 0 and cell["memory"] is None
        for name, entry in zip(
            names, [e for e in results["baselines"] if e["seq_len"] == cell["seq_len"]], strict=True
        ):
            ratio = entry["seconds_per_token_layer"] / cell["seconds_per_token_layer"]
            assert cell["time_saved"][name] == {"ratio": pytest.approx(ratio), "extrapolated": False}
            assert cell["memory_saved"][name] is None
    written = {path.name for path in tmp_path.iterdir()}
    figures = {f"{name}.{kind}" for name in ("time_saved", "time_per_token") for kind in ("png", "svg")}
    assert written == {"efficiency.json", "efficiency.md", "report.html"} | figures
    assert capsys.readouterr().out.splitlines()[-1] == f"Saved in {tmp_path}"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["forward", "train"])
def test_memory_of_a_tiny_run(tmp_path, mode):
    arguments = ["--mode", mode, "--lengths", "64", "--projected_dims", "8", "--baselines", "full", "--budget_gib", "1"]
    results = run(tmp_path, *arguments)
    cell, baseline = results["cells"][0], results["baselines"][0]
    for entry in (cell, baseline):
        assert entry["memory"]["batch"] == 256 and entry["memory"]["layers"] == (4 if mode == "train" else 1)
        # the hidden states, which the run returns, at least
        assert entry["memory"]["peak_bytes"] > 256 * 64 * 32 * 4
        assert entry["memory"]["bytes_per_sample"] == entry["memory"]["peak_bytes"] / 256
    ratio = cell["memory"]["largest_batch"] / baseline["memory"]["largest_batch"]
    assert cell["memory_saved"]["full"] == {"ratio": pytest.approx(ratio), "extrapolated": False}
    assert (tmp_path / "memory_saved.png").exists()


@pytest.mark.e2e
def test_ctrl_c_keeps_what_is_done(tmp_path, monkeypatch, capsys):
    real = efficiency.build

    def build_until(encoder, *arguments, **keywords):
        if encoder.seq_len == 64:
            raise KeyboardInterrupt
        return real(encoder, *arguments, **keywords)

    monkeypatch.setattr(efficiency, "build", build_until)
    with pytest.raises(SystemExit) as exit_:
        run(tmp_path, "--memory=false", "--lengths", "32", "64", "--projected_dims", "8")
    assert exit_.value.code == 130
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == [f"What was measured so far is in {tmp_path}", "linformer: interrupted"]
    results = json.loads((tmp_path / "efficiency.json").read_text())
    assert not results["complete"]
    assert [cell["seq_len"] for cell in results["cells"]] == [32]
    assert "Interrupted" in (tmp_path / "efficiency.md").read_text()


def test_ctrl_c_between_time_and_memory_keeps_the_times(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(efficiency, "measure_memory", interrupt)
    with pytest.raises(SystemExit):
        run(tmp_path, "--lengths", "32", "--projected_dims", "8", "--baselines", "full")
    results = json.loads((tmp_path / "efficiency.json").read_text())
    assert not results["complete"]
    assert (
        results["cells"][0]["time_saved"]["full"]["ratio"] > 0 and results["cells"][0]["memory_saved"]["full"] is None
    )


@pytest.mark.e2e
def test_memory_that_fails_is_told_and_extrapolated(tmp_path, monkeypatch):
    """The measurement is simulated: a process that is killed at the longest sequence."""

    def measure(encoder, batch, settings, device):
        if (encoder.kind, encoder.seq_len) == ("full", 64):
            return {"batch": batch, "layers": 1, "failed": "the process was killed"}
        return {
            "batch": batch,
            "layers": 1,
            "bytes_per_sample": 100.0 * encoder.seq_len,
            "peak_bytes": 1,
            "weight_bytes": 1,
        }

    monkeypatch.setattr(efficiency, "measure_memory", measure)
    results = run(tmp_path, "--lengths", "16", "32", "64", "--projected_dims", "8", "--baselines", "full")
    memories = [entry["memory"] for entry in results["baselines"]]
    assert [entry["extrapolated"] for entry in memories] == [False, False, True]
    assert memories[2]["failed"] == "the process was killed" and memories[2]["bytes_per_sample"] == pytest.approx(6400)
    assert results["cells"][2]["memory_saved"]["full"] == {"ratio": pytest.approx(1), "extrapolated": True}


def test_memory_that_runs_out_is_no_crash(monkeypatch):
    def allocate(*_):
        torch.empty(2**50)

    monkeypatch.setattr(memory, "in_fresh_process", allocate)
    encoder = Encoder(kind="full", seq_len=37, layers=1)
    found = memory.measure_memory(encoder, 3, EfficiencySettings(**SMALL), CPU)
    assert found["batch"] == 3 and "tried to allocate" in found["failed"]


def test_slow_and_large_baselines_are_left_to_be_extrapolated(monkeypatch):
    measured = []

    def measure(encoder, batch, settings, device):
        measured.append((encoder.kind, encoder.layers, batch))
        return {"bytes_per_sample": 1.0, "weight_bytes": 1, "layers": 1}

    monkeypatch.setattr(efficiency, "measure_memory", measure)
    monkeypatch.setattr(efficiency, "free_bytes", lambda device: 5 * 3 * 37**2 * 8 * 1.2 * 1.01 / 0.4)
    settings = EfficiencySettings(dtype="bfloat16", tokens=37, **SMALL)
    length = efficiency._Length(37, [7], settings, CPU, efficiency.tqdm(disable=True))
    slow, quick = ({"time": {"median_s": seconds}} for seconds in (11.0, 1.0))
    for kind, timed in [("full", slow), ("roberta", quick), ("linformer", slow), ("eager", slow)]:
        length._memory(
            Encoder(kind=kind, seq_len=37, layers=2, projected_dim=7 if kind == "linformer" else None), timed
        )
    batch = 16384 // 37
    assert measured == [("roberta", 1, batch), ("linformer", 1, batch), ("eager", 1, 5)]
    monkeypatch.setattr(efficiency, "free_bytes", lambda device: 3 * 37**2 * 8 * 1.2 / 0.41)
    assert length._memory(Encoder(kind="eager", seq_len=37, layers=2), slow) is None


@pytest.mark.e2e
def test_results_are_written_over_only_when_asked(tmp_path, capsys):
    arguments = ["--memory=false", "--lengths", "16", "--projected_dims", "8", "--baselines", "full"]
    run(tmp_path, *arguments)
    with pytest.raises(SystemExit):
        run(tmp_path, *arguments)
    assert "output_dir: expected a new or empty folder" in capsys.readouterr().err
    for name in ("memory_saved.png", "memory_saved.svg"):
        (tmp_path / name).write_text("of another measurement")
    assert run(tmp_path, *arguments, "--overwrite")["complete"]
    assert (tmp_path / "time_saved.png").exists() and not [*tmp_path.glob("memory_saved.*")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths="], "lengths: expected a list of integers, got none"),
        (["--projected_dims="], "projected_dims: expected at least one, got none"),
        (["--lengths", "64", "512"], "lengths: expected more than the smallest of projected_dims, 128, got 64"),
        (["--lengths", "0"], "lengths: expected a positive number, got 0"),
        (["--lengths", "long"], "lengths: expected a list of integers, got long"),
        (["--baselines", "bert"], "baselines: expected one of eager, full, roberta, got bert"),
        (["--device", "gpu"], "device: expected cpu"),
        (["--device", "cuda:97"], "device: expected cpu"),
        (["--device", "meta"], "device: expected cpu"),
        (["--dtype", "int8"], "dtype: expected one of auto, float32, bfloat16, float16, got int8"),
        (["--num_attention_heads", "7"], "num_attention_heads: expected a divisor of 768, got 7"),
        (["--budget_gib", "0"], "budget_gib: expected a positive number, got 0.0"),
        (["--seed", "-1"], "seed: expected 0 to 4294967295, got -1"),
        (["--output_dir", "taken"], "output_dir: expected a new or empty folder, got taken, which exists"),
        (["--output_dir", "taken/file"], "output_dir: expected a new or empty folder, got taken/file, which exists"),
        (["--output_dir", "taken/file", "--overwrite"], "output_dir: expected a folder, got the file taken/file"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "efficiency", *arguments])
    lines = capsys.readouterr().err.splitlines()
    assert exit_.value.code == 2
    assert len(lines) == 1 and lines[0].startswith(f"linformer: error: {message}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(2, 3 * 2 + 5 * 4.0), (4, 3 * 4 + 5 * 16.0)], 3 * 8 + 5 * 64),
        ([(1, 1e9), (4, 3 * 4 + 5 * 16.0), (2, 3 * 2 + 5 * 4.0)], 3 * 8 + 5 * 64),  # the longest two, in any order
        ([(2, 10.0), (4, 20.0)], 40),  # linear
        ([(2, 10.0), (4, 19.0)], 38),  # less than that is not a negative square
        ([(2, 4.0), (4, 17.0)], 68),  # more than quadratic is not a negative line
        ([(2, 4.0)], None),
        ([], None),
    ],
)
def test_extrapolation(points, expected):
    assert extrapolate(points, 8) == (None if expected is None else pytest.approx(expected))


def test_what_eager_cannot_run_is_extrapolated_and_marked():
    results = efficiency_results([4096, 8192, 16384])
    eager = [entry for entry in results["baselines"] if entry["name"] == "eager"]
    assert [entry["extrapolated"] for entry in eager] == [False, False, True]
    assert eager[2]["seconds_per_token_layer"] == pytest.approx(2e-5 + 2e-8 * 16384)
    assert eager[2]["memory"]["bytes_per_sample"] == pytest.approx(2e5 * (1 + 16) * 16384)
    cell = results["cells"][-1]
    assert cell["time_saved"]["eager"]["extrapolated"] and cell["memory_saved"]["eager"]["extrapolated"]
    assert not cell["time_saved"]["full"]["extrapolated"]
    before = json.dumps(results)
    compare(results)  # what was extrapolated is no measurement
    assert json.dumps(results) == before


def test_largest_batch_by_hand():
    measured = {"bytes_per_sample": 2**20, "layers": 1, "weight_bytes": 2**28}
    settings = EfficiencySettings(budget_gib=1)
    assert largest_batch(measured, settings) == 1024 - 256
    assert largest_batch({**measured, "weight_bytes": 2**31}, settings) == 0
    assert largest_batch({"batch": 1, "failed": "out of memory"}, settings) is None
    settings.mode = "train"
    assert largest_batch(measured, settings) == (1024 - 512) / 12
    assert largest_batch({**measured, "layers": 12}, settings) == 1024 - 512


def test_a_negative_number_of_busy_cores():
    with pytest.raises(InputError, match="busy_cores: expected 0 or more, got -1"):
        efficiency._settled(EfficiencySettings(busy_cores=-1), CPU)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 37, 64, 1000, 12345])
def test_search_for_the_largest_batch(limit):
    found = largest(lambda size: size <= limit)
    assert limit * (1 - 1 / memory._PRECISION) - 1 <= found <= limit


def test_weights_of_twelve_layers():
    settings = EfficiencySettings(dtype="bfloat16", **SMALL)
    one, twelve = (build(Encoder(kind="roberta", seq_len=37, layers=layers), settings, CPU) for layers in (1, 12))
    assert weight_bytes(one) == weight_bytes(twelve) == sum(2 * p.numel() for p in twelve.parameters())


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("kind", ["linformer", "full", "roberta", "eager"])
def test_encoders_are_what_they_are_called(kind, mode):
    settings = EfficiencySettings(dtype="bfloat16", **SMALL)
    k = 7 if kind == "linformer" else None
    model = build(Encoder(kind=kind, seq_len=37, layers=2, projected_dim=k), settings, CPU, mode=mode)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32
    assert all(module.p == 0 for module in model.modules() if isinstance(module, torch.nn.Dropout))
    expected = {"eager": "eager", "roberta": "sdpa"}.get(kind)
    assert expected is None or model.config._attn_implementation == expected
    output = runner(model, random_ids(2, 37, encoders.VOCAB_SIZE, 0, CPU), mode)()
    assert mode == "train" or output.shape == (2, 37, 33)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_eager_and_sdpa_are_one_model():
    settings = EfficiencySettings(dtype="float32", **SMALL)
    ids = random_ids(2, 37, encoders.VOCAB_SIZE, 0, CPU)
    outputs = [
        runner(build(Encoder(kind=kind, seq_len=37, layers=2), settings, CPU), ids, "forward")()
        for kind in ("eager", "roberta")
    ]
    torch.testing.assert_close(*outputs)
