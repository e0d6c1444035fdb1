"""Several processes equal one: outputs, every gradient, updates. All in float64, with random parameters."""

from __future__ import annotations

import copy
import itertools
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import linformer_kit as lk
from linformer_kit.models import modeling
from linformer_kit.operator.padding import real_tokens_first
from tests.conftest import SHARINGS, SIZES, shrink_blocks
from tests.parallel.split_model import build, make_batch, run, split

pytestmark = pytest.mark.e2e

KINDS: list[dict[str, Any]] = [
    {"sharing": "none"},
    {"sharing": "layerwise", "norm_first": True},
    {"sharing": "none", "projected_dim": [[7, 5, 3], [2, 2, 2]]},
    {"bias_order": "after_projection"},
    {"projection": "mean_pool", "projected_dim": [[7, 5, 7], [3, 3, 3]]},
    {"projection": "dynamic", "sharing": "none", "projected_dim": [[7, 5, 7], [3, 3, 3]]},
    {"projection": "random"},
    {"local_convolution": 5},
    {"sliding_window": 4, "local_convolution": 3, "sharing": "layerwise", "norm_first": True},
]


def ordered(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The real tokens first, zeros where there is none, as `gather` returns them."""
    taken = tensor.take_along_dim(real_tokens_first(mask == 0)[..., None], 1)
    return zero_padded(taken, mask)


def zero_padded(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    real = torch.arange(mask.shape[1]) < mask.sum(dim=1)[:, None]
    return tensor.masked_fill(~real[..., None], 0.0)


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def whole_gradients(model: torch.nn.Module, parallel: lk.SequenceParallel) -> dict[str, torch.Tensor]:
    """Those of the split model, put together as its parameters are."""
    for parameter in model.parameters():
        parameter.data = parameter.grad
    return parallel.full_state_dict()


def assert_close(found: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=lambda text: f"{what}: {text}")


def step(model, parallel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Forward, backward and the sum of the losses."""
    piece = parallel.shard(batch)
    loss = model(**piece, num_items_in_batch=parallel.count_labels(piece["labels"])).loss
    loss.backward()
    parallel.reduce_gradients()
    total = loss.detach().clone()
    dist.all_reduce(total, group=parallel.group)
    return total


def compare(whole: torch.nn.Module, batch: dict[str, torch.Tensor], what: object) -> None:
    """Loss and every gradient of the split model beside those of the whole one of the first process."""
    first = dist.get_rank() == 0
    model = copy.deepcopy(whole)
    parallel = split(model)
    total = step(model, parallel, batch)
    found = whole_gradients(model, parallel)
    if first:
        loss = whole(**batch).loss
        loss.backward()
        assert_close(total, loss.detach(), what)
        for name, gradient in gradients(whole).items():
            assert_close(found[name], gradient, (what, name))


def check_kinds() -> None:
    for fields, seq_len in zip(KINDS, itertools.cycle((23, 2, 37)), strict=False):
        compare(build(**fields), make_batch(seq_len), (fields, seq_len))


def test_loss_and_every_gradient_equal_those_of_one_process(tmp_path):
    run(3, check_kinds, tmp_path)


def random_fields(draw: random.Random) -> dict[str, Any]:
    """A model with a sliding window, whose pieces may be just as long as half the window."""
    projection, sharing = draw.choice(["linear", "linear", "mean_pool", "random", "dynamic"]), draw.choice(SHARINGS)
    return {
        "sliding_window": draw.randint(1, 8),
        "max_position_embeddings": draw.choice([12, 13, 19, 37]),
        "local_convolution": draw.choice([0, 0, 3, 7]),
        "projection": projection,
        "sharing": sharing,
        "projected_dim": draw.choice([7, 7, [[7, 5, 7], [3, 3, 3]]]),
        "bias_order": f"{'before' if sharing == 'none' else draw.choice(['before', 'after'])}_projection",
    }


def check_windows(seed: int, cases: int) -> None:
    """Drawn models and lengths, the same on every process."""
    draw = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        shrink_blocks(patched)
        for case in range(cases):
            fields = random_fields(draw)
            seq_len = draw.randint(1, fields["max_position_embeddings"])
            unread = draw.random() < 0.3  # an order of tokens even if real ones are first, as on accelerators
            hooked = draw.random() < 0.3  # maps that are not affine, which run on every token
            what = (seed, case, fields, seq_len, unread, hooked)
            whole = build(**fields)
            for layer in whole.linformer.encoder.layers if hooked else ():
                layer.self_attn.k_proj.register_forward_hook(lambda _, inputs, output: output.tanh())
            with pytest.MonkeyPatch.context() as reading:
                if unread:
                    reading.setattr(modeling, "values_are_cheap", lambda _: False)
                compare(whole, make_batch(seq_len, seed=case), what)


def test_windows_over_the_edges_of_pieces(tmp_path):
    run(3, check_windows, tmp_path, 3, 8)


def check_heads() -> None:
    batch = make_batch(23)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    classes = (ids % 5).masked_fill(mask == 0, -100)
    compare(build(lk.LinformerForTokenClassification, num_labels=5), {**batch, "labels": classes}, "tokens")
    compare(build(lk.LinformerForSequenceClassification, num_labels=5), {**batch, "labels": ids[:, 0] % 5}, "classes")
    regression = {**batch, "labels": torch.randn(6, 23, generator=torch.Generator().manual_seed(1)).double()}
    compare(
        build(lk.LinformerForSequenceClassification, num_labels=23, problem_type="regression"), regression, "regression"
    )
    for fields in ({}, {"sliding_window": 6}):
        checkpointed = build(**fields)
        checkpointed.gradient_checkpointing_enable()
        compare(checkpointed, batch, (fields, "gradient checkpointing"))
    types = {**batch, "token_type_ids": ids % 3}
    compare(build(type_vocab_size=3), types, "token types")
    del batch["attention_mask"]
    compare(build(), batch, "no mask")
    check_hidden_states(ids, mask)


def check_hidden_states(ids: torch.Tensor, mask: torch.Tensor) -> None:
    """Outputs and P̄, put together again, with NaN in all padding."""
    windowed: dict[str, Any] = {"sliding_window": 8, "local_convolution": 3, "sharing": "layerwise"}
    for fields in ({}, windowed):
        model = build(lk.LinformerModel, **fields).eval()
        embeds = torch.randn(*ids.shape, SIZES["hidden_size"], generator=torch.Generator().manual_seed(1)).double()
        embeds[mask == 0] = math.nan
        inputs = {"inputs_embeds": embeds, "attention_mask": mask}
        with torch.no_grad():
            expected = model(**inputs, output_hidden_states=True, output_attentions=True)
            parallel = split(model)
            found = model(**parallel.shard(inputs), output_hidden_states=True, output_attentions=True)
            with pytest.MonkeyPatch.context() as patched:
                shrink_blocks(patched)
                in_blocks = model(**parallel.shard(inputs)).last_hidden_state
        pairs = [
            *zip(found.hidden_states, expected.hidden_states, strict=True),
            (in_blocks, expected.last_hidden_state),
            *(
                (by_token(ours), by_token(other))
                for ours, other in zip(found.attentions, expected.attentions, strict=True)
            ),
        ]
        for ours, other in pairs:
            together = zero_padded(parallel.gather(ours, ids.shape[1]), mask)
            if dist.get_rank() == 0:
                assert_close(together, ordered(other, mask), (fields, "hidden states and P̄"))


def by_token(weights: torch.Tensor) -> torch.Tensor:
    """P̄, `[batch, heads, query_len, columns]`, with queries on the second axis."""
    return weights.transpose(1, 2).flatten(2)


def test_heads_hidden_states_and_padding(tmp_path):
    run(3, check_heads, tmp_path)


def check_training(folder) -> None:
    """Three clipped updates, saved, loaded: the same model as one process makes, and the same outputs bit for bit."""
    whole = build(sharing="none")
    model = copy.deepcopy(whole)
    parallel = split(model)
    for parameter in model.parameters():
        assert parameter.shape[-1] <= SIZES["vocab_size"]
    held = model.linformer.encoder.layers[0].self_attn.projection.key_projection
    assert held.shape == (3, 7, len(range(37)[parallel.positions])), "the columns of the piece, and no others"
    optimizer, reference = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, whole))
    for update in range(3):
        batch = make_batch(31, seed=update)
        optimizer.zero_grad()
        step(model, parallel, batch)
        norm = parallel.clip_grad_norm_(0.5)
        optimizer.step()
        if dist.get_rank() == 0:
            reference.zero_grad()
            whole(**batch).loss.backward()
            assert_close(norm, torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5), "norm")
            assert norm > 0.5
            reference.step()
    with pytest.raises(lk.InputError, match=r"state_dict: expected SequenceParallel\.full_state_dict"):
        model.save_pretrained(folder)  # a piece of E and F
    state = parallel.full_state_dict()
    assert bool(state) == (dist.get_rank() == 0)
    if state:
        for name, tensor in whole.state_dict().items():
            assert_close(state[name], tensor, name)
        model.save_pretrained(folder, state_dict=dict(state))  # which takes tied names out
        loaded = lk.LinformerForMaskedLM.from_pretrained(folder)
        assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.state_dict().items())
    dist.barrier()
    again = lk.LinformerForMaskedLM.from_pretrained(folder)
    split(again)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


def check_data_parallel() -> None:
    """Two sequences groups of two processes each under DistributedDataParallel."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "sequence"))
    whole = build(local_convolution=3)
    model = copy.deepcopy(whole)
    parallel = lk.SequenceParallel(model, mesh)
    wrapped = DistributedDataParallel(model, process_group=mesh["data"].get_group())
    batch = make_batch(31)
    mine = {name: tensor[mesh["data"].get_local_rank() :: 2] for name, tensor in batch.items()}
    piece = parallel.shard(mine)
    loss = wrapped(**piece, num_items_in_batch=parallel.count_labels(piece["labels"])).loss
    loss.backward()
    parallel.reduce_gradients()
    total = loss.detach().clone()
    dist.all_reduce(total)
    norm = parallel.clip_grad_norm_(0.1)
    found = whole_gradients(model, parallel)
    if dist.get_rank() == 0:
        expected = whole(**batch).loss
        expected.backward()
        assert_close(total / 2, expected.detach(), "loss")
        assert_close(norm, torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.1), "norm")
        for name, gradient in gradients(whole).items():
            assert_close(found[name], gradient, name)


def test_updates_and_saving(tmp_path):
    run(2, check_training, tmp_path, tmp_path / "model")


def test_with_distributed_data_parallel(tmp_path):
    run(4, check_data_parallel, tmp_path)


class Traffic(TorchDispatchMode):
    """Bytes that are sent, by the name of the operation."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d" and function._opname != "recv_":
            tensors = args[1] if function._opname == "allgather_" else args[0]
            sent = torch.utils._pytree.tree_leaves(tensors)
            self.messages.append((function._opname, sum(t.numel() * t.element_size() for t in sent)))
        return function(*args, **(kwargs or {}))


def check_traffic() -> None:
    """Each layer sends k rows, and the tokens at the edges of pieces where neighbours are read."""
    layers, batch, embed, k, rank = 2, 6, 33, 7, dist.get_rank()
    for fields, numbers in (
        ({"sharing": "headwise"}, 2 * k * (embed + 1)),
        ({"sharing": "none"}, 2 * k * embed),
        ({"projection": "dynamic"}, k * (embed + 1)),
        ({"local_convolution": 5}, 2 * k * (embed + 1)),
        ({"sliding_window": 6}, 2 * k * (embed + 1)),
    ):
        for seq_len in (11, 83):
            model = build(**fields, max_position_embeddings=83)
            parallel = split(model)
            piece = parallel.shard(make_batch(seq_len))
            count = parallel.count_labels(piece["labels"])
            with Traffic() as forward:
                loss = model(**piece, num_items_in_batch=count).loss
            with Traffic() as backward:
                loss.backward()
            both = [("allreduce_", batch * numbers * 8)]
            both += [("send", 2 * batch * embed * 8)] * ("local_convolution" in fields)
            softmax = [("allreduce_", batch * k * 8)] * (fields.get("projection") == "dynamic")
            # ⌊w/2⌋ tokens go to the next process, ⌊(w - 1)/2⌋ to the one before; their gradients come back.
            near = [("send", batch * tokens * (2 * embed + 1) * 8) for tokens in (3, 2)]
            near *= fields.get("sliding_window") == 6
            sent, returned = near[rank : rank + 1], near[1 - rank : 2 - rank]
            found, expected = sorted(forward.messages), [*both, *softmax, *softmax, *sent]
            assert found == sorted(expected * layers), (fields, found)
            found, expected = sorted(backward.messages), [*both, *softmax, *returned]  # no maximum
            assert found == sorted(expected * layers), (fields, found)


def test_bytes_do_not_depend_on_n(tmp_path):
    run(2, check_traffic, tmp_path)


@pytest.mark.slow
def test_the_example_runs_under_torchrun(tmp_path):
    """Four processes, two for each sequence: its loss falls, and what it saves is an ordinary model."""
    script = Path(__file__).parents[2] / "examples" / "sequence_parallel.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    result = subprocess.run([*torchrun, script, "2"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    losses = [float(line.split()[-1]) for line in result.stdout.splitlines() if line.startswith("update")]
    assert len(losses) == 6 and losses[-1] < 0.5 * losses[0], losses
    model = lk.LinformerForMaskedLM.from_pretrained(tmp_path / "sequence-parallel-model")
    assert model.linformer.encoder.projection.key_projection.shape == (64, 4096)
