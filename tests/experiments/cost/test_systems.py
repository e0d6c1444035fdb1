"""The systems that Linformer is compared with, and the bench that times them. Nothing here depends on the clock."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linformer_kit.errors import InputError
from linformer_kit.experiments.cost import builders, systems
from linformer_kit.experiments.cost.layers import StridedAttention, stride_of, strided_block_mask, transposed
from linformer_kit.experiments.cost.registry import SYSTEMS
from linformer_kit.operator.attention import LinformerAttention
from linformer_kit.settings.bench import SystemsSettings

WIDTH, HEADS, K, N = 30, 5, 13, 112
PEERS = {"lucidrains": "linformer", "tatp22": "linformer_pytorch"}


@pytest.fixture
def small(monkeypatch):
    """Settings of a tiny layer, with windows and blocks in proportion."""
    for name, size in (("WINDOW", 16), ("BIG_BIRD_BLOCK", 8), ("LANDMARKS", 4), ("LSH_CHUNK", 4)):
        monkeypatch.setattr(builders, name, size)

    def settings(**fields: object) -> SystemsSettings:
        sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH, "tokens": 3 * N}
        quick = {"lengths": [16, 32], "projected_dims": [K], "dtype": "float32", "repetitions": 2}
        return systems.checked(SystemsSettings(**{**sizes, **quick, **fields}))

    return settings


def built(name: str, settings: SystemsSettings, n: int) -> nn.Module:
    if name in PEERS:
        pytest.importorskip(PEERS[name])
    return SYSTEMS[name].build(settings, n, K if SYSTEMS[name].projected else None).eval()


@torch.inference_mode()
def check_layer(layer: nn.Module, n: int) -> None:
    hidden = torch.randn(3, n, WIDTH)
    given = hidden.clone()
    output = layer(hidden)
    assert output.shape == hidden.shape and output.isfinite().all()
    assert torch.equal(hidden, given), "the input was written to"
    maps = [(module.in_features, module.out_features) for module in layer.modules() if isinstance(module, nn.Linear)]
    assert maps.count((WIDTH, 4 * WIDTH)) == maps.count((4 * WIDTH, WIDTH)) == 1, "one feed-forward part of that size"


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "sparse"])
def test_every_system_is_one_layer_that_keeps_the_shape(small, name):
    check_layer(built(name, small(), N), N)


@pytest.mark.slow
def test_sparse_system_is_one_layer_that_keeps_the_shape(small):
    check_layer(built("sparse", small(), 256), 256)


@pytest.mark.parametrize("n, kind", [(88, "BigBirdSelfAttention"), (96, "BigBirdBlockSparseAttention")])
def test_big_bird_is_sparse_as_soon_as_transformers_would_be(small, n, kind):
    assert kind in {type(module).__name__ for module in built("bigbird", small(), n).modules()}


@torch.inference_mode()
def changed_positions(layer: nn.Module, position: int) -> list[int]:
    """Where the output changes with the token at a position."""
    hidden = torch.randn(1, 48, WIDTH)
    other = hidden.clone()
    other[0, position] += 1
    return (layer(hidden) != layer(other)).any(dim=-1)[0].nonzero().flatten().tolist()


@pytest.mark.parametrize("window", [32, 64, 512])
def test_a_window_is_as_wide_as_its_name_says(window, small):
    layer = built(f"window-{window}", small(), N)
    (attention,) = (part for part in layer.modules() if isinstance(part, LinformerAttention))
    assert attention.sliding_window == window


def test_blocks_do_not_see_each_other(small):
    assert changed_positions(built("blockwise", small(), 48), 19) == list(range(16, 32))


def test_the_recurrent_layer_sees_both_sides(small):
    assert changed_positions(built("recurrent", small(), 48), 19) == list(range(48))


def test_recurrent_layer_refuses_an_odd_width(small):
    with pytest.raises(InputError, match="hidden_size: expected an even number, half for each direction, got 35"):
        built("recurrent", small(hidden_size=35), N)


@pytest.mark.parametrize("name", ["blockwise", "longformer", "reformer", "bigbird", "nystromformer"])
def test_lengths_that_blocks_do_not_tile_are_refused(small, name):
    with pytest.raises(InputError, match=r"n: expected a multiple of the .*, got 113"):
        built(name, small(), 113)


def test_lucidrains_refuses_another_feed_forward_size(small):
    with pytest.raises(InputError, match=r"intermediate_size: expected 4 × hidden_size, 120.*, got 90"):
        built("lucidrains", small(intermediate_size=90), N)


def strided_pattern(n: int, stride: int, heads: int) -> torch.Tensor:
    """Which tokens attend to each other, by the paper's definition: `[heads, n, n]`."""
    apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    near, far = apart < stride, apart % stride == 0
    return torch.stack([near] * (heads // 2) + [far] * (heads - heads // 2))


def by_remainder(n: int, stride: int) -> torch.Tensor:
    return torch.arange(n).view(-1, stride).T.flatten()


@pytest.mark.parametrize("n, stride", [(128, 8), (256, 16), (768, 32), (512, 256)])
def test_strided_block_mask_is_the_pattern(n, stride):
    pattern = strided_pattern(n, stride, 3)
    order = by_remainder(n, stride)
    pattern[1:] = pattern[1:, order][:, :, order]
    mask = strided_block_mask(n, stride, 3, "cpu")
    heads, positions = torch.arange(3)[:, None, None], torch.arange(n)
    assert torch.equal(mask.mask_mod(None, heads, positions[:, None], positions), pattern)
    pairs = pattern.view(3, n // 128, 128, n // 128, 128).sum((2, 4))
    assert torch.equal(mask.to_dense()[0], (pairs > 0).int())
    assert torch.equal(mask.full_kv_num_blocks[0], (pairs == 128**2).sum(-1, dtype=torch.int32))


def test_transposed_orders_by_remainder_and_back():
    heads = torch.randn(2, 3, 35, 7)
    assert torch.equal(transposed(heads, 5), heads[:, :, by_remainder(35, 7)])
    assert torch.equal(transposed(transposed(heads, 5), 7), heads)


@pytest.mark.parametrize("n, stride", [(512, 16), (1024, 32), (16384, 128), (65536, 256)])
def test_stride_is_the_power_of_two_next_to_the_root(n, stride):
    assert stride_of(n) == stride


def test_stride_refuses_lengths_without_whole_blocks():
    with pytest.raises(InputError, match="n: expected a multiple of 128 for the strided pattern, got 200"):
        stride_of(200)


@pytest.mark.slow
def test_strided_attention_is_masked_attention():
    attention = StridedAttention(48, 3, 256, device="cpu")
    hidden = torch.randn(2, 256, 48)
    query, key, value = (
        project(hidden).view(2, 256, 3, 16).transpose(1, 2)
        for project in (attention.query, attention.key, attention.value)
    )
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=strided_pattern(256, 16, 3))
    expected = attention.output(attended.transpose(1, 2).flatten(2))
    with torch.inference_mode():
        torch.testing.assert_close(attention(hidden), expected)


@pytest.mark.parametrize("power", [1, 2])
def test_fitted_exponent_of_powers_is_exact(power):
    runs = [{"n": n, "per_token_s": 3e-9 * n ** (power - 1)} for n in (16, 32, 64, 128, 256)]
    runs[1]["per_token_s"] = 1.0  # a short length, which does not count
    fit = systems.fitted_exponent(runs)
    assert fit == {"value": pytest.approx(power, abs=1e-12), "lengths": [64, 128, 256]}


def test_fitted_exponent_needs_two_lengths():
    assert systems.fitted_exponent([{"n": 16, "per_token_s": 1.0}]) is None
    two = systems.fitted_exponent([{"n": 16, "per_token_s": 1.0}, {"n": 32, "per_token_s": 2.0}])
    assert two == {"value": pytest.approx(2), "lengths": [16, 32]}


def measured(settings: SystemsSettings, folder) -> dict:
    """The content of `systems.json` after a run."""
    text = systems.bench_systems(replace(settings, output_dir=str(folder))).text
    assert text == (folder / "systems.md").read_text()
    assert (folder / "systems.png").exists()
    return json.loads((folder / "systems.json").read_text())


def test_results(small, tmp_path):
    results = measured(small(systems=["recurrent", "linformer"], projected_dims=[7, 19]), tmp_path)
    assert set(results) == {"command", "environment", "settings", "systems", "complete"}
    assert results["complete"] and results["settings"]["lengths"] == [16, 32]
    assert [(entry["name"], entry["k"]) for entry in results["systems"]] == [
        ("recurrent", None),
        ("linformer", 7),
        ("linformer", 19),
    ]
    recurrent, seven, nineteen = results["systems"]
    assert set(recurrent) == {
        "name", "k", "label", "complexity", "claim", "note", "package", "runs", "skipped", "exponent",
    }  # fmt: skip
    assert [(run["n"], run["batch"]) for run in recurrent["runs"]] == [(16, 21), (32, 10)]
    run = seven["runs"][0]
    assert set(run) == {"n", "batch", "median_s", "min_s", "max_s", "runs", "first_run_s", "per_token_s"}
    assert run["runs"] == 2 and run["per_token_s"] == pytest.approx(run["median_s"] / (16 * 21))
    assert seven["exponent"]["lengths"] == [16, 32] and nineteen["exponent"] is None
    assert nineteen["skipped"] == [{"n": 16, "reason": "k 19 is not below n"}]


def test_training_and_memory(small, tmp_path, monkeypatch):
    """A training run has gradients of weights and input, and keeps activations."""
    layers = []

    def noted(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
        layers.append(builders.full(settings, n, k))
        layers[-1].register_full_backward_hook(lambda _, inputs, __: seen.append((_.training, inputs[0].shape)))
        return layers[-1]

    seen: list[tuple[bool, torch.Size]] = []
    sizes = {"lengths": [N], "tokens": 8 * N, "systems": ["full"]}
    with monkeypatch.context() as context:
        context.setitem(SYSTEMS, "full", replace(SYSTEMS["full"], build=noted))
        measured(small(**sizes, mode="train"), tmp_path / "hooked")
    assert seen == [(True, torch.Size([8, N, WIDTH]))] * 3  # once to start, and two repetitions
    assert all(parameter.grad is None for parameter in layers[0].parameters())
    (entry,) = measured(small(**{**sizes, "tokens": 512 * N}, mode="train", memory=True), tmp_path / "train")["systems"]
    kept = entry["runs"][0]["peak_bytes"]
    assert kept > 512 * N * WIDTH * 4 * 5  # float32; at least the input of each product
    text = (tmp_path / "train" / "systems.md").read_text()
    assert (
        "Time of forward and backward per token" in text
        and f"| Transformer (linformer-kit) | {kept / 2**20:,.0f} |" in text
    )


def test_a_failure_is_reported_and_the_rest_goes_on(small, tmp_path, monkeypatch):
    def failing(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
        raise RuntimeError("\n  no such kernel\nat line 3")

    class NotANumber(nn.Module):
        def forward(self, hidden):
            return hidden * torch.nan

    monkeypatch.setitem(SYSTEMS, "fnet", replace(SYSTEMS["fnet"], build=failing))
    monkeypatch.setitem(SYSTEMS, "full", replace(SYSTEMS["full"], build=lambda *_: NotANumber()))
    fnet, full, linformer = measured(small(systems=["fnet", "full", "linformer"]), tmp_path)["systems"]
    assert fnet["runs"] == [] and fnet["skipped"][0] == {
        "n": 16,
        "reason": "failed with RuntimeError: no such kernel",
    }
    assert full["skipped"][1]["reason"] == "expected finite [10, 32, 30], got [10, 32, 30] with NaN or infinity"
    assert len(linformer["runs"]) == 2 and linformer["skipped"] == []


def test_a_missing_peer_is_reported(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer", None)  # as if it were not there
    (entry,) = measured(small(systems=["lucidrains"]), tmp_path)["systems"]
    reason = 'linformer is not installed: pip install "linformer-kit[peers]"'
    assert entry["skipped"] == [{"n": n, "reason": reason} for n in (16, 32)]


def test_what_is_slow_is_not_run_at_longer_lengths(small, tmp_path):
    (entry,) = measured(small(systems=["full"], max_seconds=1e-9), tmp_path)["systems"]
    assert [run["n"] for run in entry["runs"]] == [16]
    assert [skipped["n"] for skipped in entry["skipped"]] == [32]
    assert "s at n 16, more than 1e-09 s" in entry["skipped"][0]["reason"]


@pytest.mark.parametrize("last", [0, 32])
def test_an_interrupt_keeps_what_is_done(small, tmp_path, monkeypatch, last):
    build = SYSTEMS["full"].build

    def interrupted(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
        if n > last:
            raise KeyboardInterrupt
        return build(settings, n, k)

    monkeypatch.setitem(SYSTEMS, "full", replace(SYSTEMS["full"], build=interrupted))
    with pytest.raises(KeyboardInterrupt):
        systems.bench_systems(small(systems=["linformer", "full"], lengths=[16, 32, 64], output_dir=str(tmp_path)))
    results = json.loads((tmp_path / "systems.json").read_text())
    assert not results["complete"]
    done = [n for n in (16, 32) if n <= last]
    assert [[run["n"] for run in entry["runs"]] for entry in results["systems"]] == [done, done]
    assert "Not complete" in (tmp_path / "systems.md").read_text()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"systems": ["full", "mamba"]}, "systems: expected some of recurrent, .*, tatp22, got mamba"),
        ({"lengths": [32, 0]}, "lengths: expected a positive number, got 0"),
        ({"projected_dims": [-1]}, "projected_dims: expected a positive number, got -1"),
        ({"tokens": 0}, "tokens: expected a positive number, got 0"),
        ({"num_attention_heads": 7}, "num_attention_heads: expected a divisor of 30, got 7"),
        ({"device": "toaster"}, "device: expected .*, got toaster"),
    ],
)
def test_bad_settings_are_refused_in_one_line(small, fields, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        small(**fields)


def test_lists_are_sorted_and_named_once(small):
    settings = small(lengths=[64, 16, 64], projected_dims=[9, 3], systems=["full", "fnet", "full"])
    assert (settings.lengths, settings.projected_dims, settings.systems) == ([16, 64], [3, 9], ["full", "fnet"])


def test_main_makes_a_new_folder_and_refuses_one_that_holds_anything(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = small(systems=["full"], lengths=[16], output_dir="out")
    systems.main(settings)
    assert "Saved in out" in capsys.readouterr().out
    with pytest.raises(InputError, match="output_dir: expected a new or empty folder, got out"):
        systems.main(settings)
    systems.main(replace(settings, output_dir=None))
    assert len(list(tmp_path.glob("runs/bench-systems-*/systems.md"))) == 1
