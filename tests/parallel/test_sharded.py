"""Sharded models: the same numbers as whole ones, and checkpoints that other numbers of processes resume.

The processes are real ones, on gloo. One set of them does all that needs its number, and writes down what it saw; the
tests compare that with one process that has the whole model.
"""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from linformer_kit import InputError, LinformerForMaskedLM
from linformer_kit.parallel.sharded import load_sharded, save_full, save_sharded, shard
from tests.conftest import KINDS, SIZES, randomise
from tests.parallel.small_model import (
    assert_equal,
    batch,
    build,
    build_optimizer,
    everything,
    flip,
    full,
    loss_of,
    train,
)
from tests.processes import run_processes

pytestmark = pytest.mark.e2e

STEPS, MORE = 3, 2
LONG = 1201  # more than a block of tokens, so that inference runs in blocks


def gradients(model: torch.nn.Module, rank: int, processes: int, *, exact: bool = True) -> dict[str, Tensor]:
    """The loss, over all processes, and what it leaves in the model."""
    model.zero_grad()
    loss = loss_of(model, rank, processes) if exact else model(**batch(rank, processes)).loss
    loss.backward()
    loss = loss.detach() / processes
    if processes > 1:
        dist.all_reduce(loss)
    return {"loss": loss, **{f"grad.{name}": full(p.grad) for name, p in model.named_parameters()}}


def logits_of_long_text(model: torch.nn.Module) -> Tensor:
    """Inference over several blocks of tokens."""
    ids = torch.randint(5, SIZES["vocab_size"], (1 + LONG // 31, 31), generator=torch.Generator().manual_seed(2))
    model.eval()
    with torch.no_grad():
        logits = model(ids).logits
    model.train()
    return logits


def no_pickles() -> ExitStack:
    """Make all unpickling fail within the context, also that of objects sent between processes."""
    stack = ExitStack()
    names = (
        "pickle.load",
        "pickle.loads",
        "pickle.Unpickler",
        "torch.load",
        "torch.distributed.distributed_c10d._unpickler",
    )
    for name in names:
        stack.enter_context(mock.patch(name, side_effect=AssertionError(f"{name} was called")))
    return stack


def kept_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """Bytes of parameters that this process keeps, and of all."""
    parameters = list(model.parameters())
    mine = [p.to_local() if isinstance(p, DTensor) else p for p in parameters]
    return sum(p.untyped_storage().nbytes() for p in mine), sum(p.numel() * p.element_size() for p in parameters)


def run(work, processes: int, folder: Path, *arguments: object) -> Path:
    """Let that many processes do a work, whose results are the files in the folder that comes back."""
    results = folder / f"{work.__name__}-{processes}"
    results.mkdir()
    run_processes(processes, _start, work, processes, folder, results, arguments)
    return results


def _start(rank: int, work, processes: int, folder: Path, results: Path, arguments: tuple[object, ...]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{results}/group", rank=rank, world_size=processes)
    work(rank, processes, folder, results, *arguments)
    dist.destroy_process_group()


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    if dist.get_rank() == 0:
        save_file(tensors, path)


def two_train(rank: int, processes: int, folder: Path, results: Path) -> None:
    """Gradients, inference, updates, a checkpoint, more updates; and the checkpoint of one process."""
    mesh = init_device_mesh("cpu", (processes,))
    model = build()
    shard(model, mesh)
    (results / f"bytes-{rank}.json").write_text(json.dumps(kept_bytes(model)))
    optimizer = build_optimizer(model)
    write(results / "gradients", gradients(model, rank, processes))
    train(model, optimizer, rank, processes, STEPS)
    logits = logits_of_long_text(model)  # and leaves the model's own parameters gathered
    save_sharded(folder / "two", model, optimizer, extra={"step": STEPS})
    save_full(folder / "full", model)
    write(results / "saved", {**everything(model, optimizer), "logits": logits})
    train(model, optimizer, rank, processes, MORE)
    write(results / "continued", everything(model, optimizer))
    go_on(rank, processes, results, folder / "one", mesh)

    low, nameless = build(), init_device_mesh("cpu", (1, processes))
    shard(low, mesh, compute_dtype=torch.bfloat16)
    found = gradients(low, rank, processes, exact=False)
    write(results / "bf16", {**found, "logits": logits_of_long_text(low)})

    with pytest.raises(InputError, match=r"^model: expected one that is not sharded, got a sharded one$"):
        shard(low, mesh)
    with pytest.raises(InputError, match=r"^mesh: expected one dimension, or two with mesh_dim_names, got "):
        shard(build(), nameless)


def go_on(rank: int, processes: int, results: Path, checkpoint: Path, mesh) -> None:
    """Load a checkpoint into a model that was never unsharded, and continue training."""
    config = build().config
    with torch.device("meta"):
        model = LinformerForMaskedLM(config).double()
    shard(model, mesh)
    model.to_empty(device="cpu")
    optimizer = build_optimizer(model)
    with no_pickles():
        extra = load_sharded(checkpoint, model, optimizer)
    assert extra == {"step": STEPS}
    write(results / f"{checkpoint.name}-loaded", everything(model, optimizer))
    train(model, optimizer, rank, processes, MORE)
    write(results / f"{checkpoint.name}-continued", everything(model, optimizer))


def three_go_on(rank: int, processes: int, folder: Path, results: Path) -> None:
    """What two have saved, and what is broken in a way that only one process looks at."""
    mesh = init_device_mesh("cpu", (processes,))
    go_on(rank, processes, results, folder / "two", mesh)
    for broken in sorted((folder / "broken").iterdir()):
        model = build()
        shard(model, mesh)
        try:
            load_sharded(broken, model)
            message = "loaded"
        except InputError as error:
            message = str(error)
        (results / f"{broken.name}-{rank}").write_text(message)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def whole(folder) -> dict[str, dict[str, Tensor]]:
    """The same by one process, which leaves a checkpoint of its own."""
    torch.manual_seed(0)
    model = build()
    optimizer = build_optimizer(model)
    seen = {"gradients": gradients(model, 0, 1)}
    train(model, optimizer, 0, 1, STEPS)
    save_sharded(folder / "one", model, optimizer, extra={"step": STEPS})
    seen["saved"] = {**everything(model, optimizer), "logits": logits_of_long_text(model)}
    train(model, optimizer, 0, 1, MORE)
    return seen | {"continued": everything(model, optimizer)}


@pytest.fixture(scope="module")
def two(folder, whole) -> Path:
    return run(two_train, 2, folder)


@pytest.fixture(scope="module")
def three(folder, two) -> Path:
    for name in sorted(path.name for path in (folder / "two").iterdir()):
        flip(shutil.copytree(folder / "two", folder / "broken" / name) / name)
    return run(three_go_on, 3, folder)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_each_process_keeps_its_share(two):
    for rank in range(2):
        mine, all_ = json.loads((two / f"bytes-{rank}.json").read_text())
        assert all_ == sum(parameter.numel() * 8 for parameter in build().parameters())
        assert 0.5 * all_ <= mine <= 0.52 * all_  # an odd number of rows does not halve


def test_losses_and_gradients_are_those_of_one_process(two, whole):
    assert_close(load_file(two / "gradients"), whole["gradients"])


def test_updates_and_inference_are_those_of_one_process(two, whole):
    assert_close(load_file(two / "saved"), whole["saved"])
    assert_close(load_file(two / "continued"), whole["continued"])


def test_bfloat16_computes_and_keeps_what_it_is_given(two, whole):
    found, expected = load_file(two / "bf16"), whole["gradients"]
    assert found.pop("logits").dtype == torch.bfloat16
    assert_close({"loss": found.pop("loss").double()}, {"loss": expected["loss"]}, tolerance=0.02)
    assert {value.dtype for value in found.values()} == {torch.float64}


@pytest.mark.parametrize("steps", ["loaded", "continued"])
@pytest.mark.parametrize(("checkpoint", "processes"), [("one", 2), ("two", 3)])
def test_another_number_of_processes_goes_on(checkpoint, processes, steps, two, three, whole):
    results = {2: two, 3: three}[processes]
    found = load_file(results / f"{checkpoint}-{steps}")
    if steps == "continued":
        assert_close(found, whole["continued"])
        return
    expected = whole["saved"] if checkpoint == "one" else load_file(two / "saved")
    assert_equal(found, {name: value for name, value in expected.items() if name != "logits"})


def test_one_process_goes_on_from_two(folder, two, whole):
    model = build("layerwise")
    randomise(model)
    optimizer = build_optimizer(model)
    with no_pickles():
        assert load_sharded(folder / "two", model, optimizer) == {"step": STEPS}
    saved = load_file(two / "saved")
    del saved["logits"]
    assert_equal(everything(model, optimizer), saved)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.95)
    train(model, optimizer, 0, 1, MORE)
    assert_close(everything(model, optimizer), whole["continued"])


def test_the_whole_model_is_an_ordinary_one(folder, two):
    model = LinformerForMaskedLM.from_pretrained(folder / "full", dtype=torch.float64)
    saved = load_file(two / "saved")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, saved[name]), name
    assert model.lm_head.decoder.weight is model.linformer.embeddings.word_embeddings.weight
    assert json.loads((folder / "full" / "config.json").read_text())["architectures"] == ["LinformerForMaskedLM"]


def test_no_file_is_a_pickle(folder, two):
    files = sorted((folder / "two").iterdir())
    shards = [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)]
    assert [path.name for path in files] == ["manifest.json", *shards, "state.json"]
    for path in files:
        content = path.read_bytes()
        assert content[:2] != b"PK" and content[:1] != pickle.PROTO, path
        load_file(path) if path.suffix == ".safetensors" else json.loads(content)


def test_all_processes_refuse_a_broken_file(folder, three):
    names = {path.name for path in (folder / "two").iterdir()}
    assert len(names) == 4
    for name in names:
        messages = {(three / f"{name}-{rank}").read_text() for rank in range(3)}
        assert len(messages) == 1
        assert str(folder / "broken" / name / name) in messages.pop().split(": expected ")[0] or name == "manifest.json"


def two_of_every_kind(rank: int, processes: int, folder: Path, results: Path) -> None:
    mesh = init_device_mesh("cpu", (processes,))
    for kind in KINDS:
        model = build(kind)
        model.gradient_checkpointing_enable()
        shard(model, mesh)
        found = gradients(model, rank, processes)
        save_sharded(folder / kind, model)
        write(results / kind, {**found, "logits": logits_of_long_text(model)})


@pytest.mark.slow
def test_every_kind_is_the_same_in_pieces(tmp_path):
    results = run(two_of_every_kind, 2, tmp_path)
    for kind in KINDS:
        model = build(kind)
        expected = {**gradients(model, 0, 1), "logits": logits_of_long_text(model)}
        assert_close(load_file(results / kind), expected)
        other = randomise(build(kind))
        load_sharded(tmp_path / kind, other)
        assert_equal(other.state_dict(), model.state_dict())


@pytest.mark.slow
def test_more_processes_than_some_tensors_have_rows(tmp_path, folder, two, whole):
    """Four, of which one keeps nothing of the three-rowed tensors, and more than have saved."""
    shutil.copytree(folder / "two", tmp_path / "two")
    results = run(four_go_on, 4, tmp_path)
    saved = load_file(two / "saved")
    del saved["logits"]
    for name in ("four", "replicas"):
        found = load_file(results / name)
        assert_equal({key: found[key] for key in saved}, saved)
        model = build()
        optimizer = build_optimizer(model)
        load_sharded(tmp_path / name, model, optimizer)
        assert_equal(everything(model, optimizer), saved)
        expected = gradients(model, 0, 1)
        del found["loss"], expected["loss"]  # summed over four, of which two are the same
        assert_close({key: found[key] for key in expected}, expected)


@pytest.mark.slow
def test_the_loop_in_the_guide_runs_and_goes_on(tmp_path):
    guide = (Path(__file__).parents[2] / "docs" / "sharded.md").read_text(encoding="utf-8")
    (tmp_path / "train_sharded.py").write_text(guide.split("```python\n")[1].split("```")[0])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
    for processes, arguments in (("2", []), ("1", ["step-2"])):
        process = [*command, processes, "train_sharded.py", *arguments]
        result = subprocess.run(process, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    assert {path.name for path in tmp_path.iterdir()} >= {"step-2", "model-2", "step-4", "model-4"}
    LinformerForMaskedLM.from_pretrained(tmp_path / "model-4")


def four_go_on(rank: int, processes: int, folder: Path, results: Path) -> None:
    """In four pieces, then as two replicas of two pieces each."""
    for name, shape in {"four": (4,), "replicas": (2, 2)}.items():
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        model = build()
        shard(model, mesh)
        optimizer = build_optimizer(model)
        load_sharded(folder / "two", model, optimizer)
        write(results / name, {**everything(model, optimizer), **gradients(model, rank % 2, 2)})
        save_sharded(folder / name, model, optimizer)
