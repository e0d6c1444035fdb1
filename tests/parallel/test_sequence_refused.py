"""What a model that is split over processes refuses, on every process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import linformer_kit as lk
from tests.parallel.split_model import build, make_batch, run

pytestmark = pytest.mark.e2e


def check_errors() -> None:
    mesh = init_device_mesh("cpu", (2,))
    for fields, message in (
        ({"attention": "full"}, "attention: expected linformer, .*, got full"),
        ({"projection": "max_pool"}, "projection: expected linear, mean_pool, random or dynamic, .*, got max_pool"),
        ({"shorter_input": "stretch"}, "shorter_input: expected prefix, .*, got stretch"),
        ({"global_tokens": 5}, "global_tokens: expected 0 in sequence parallel, got 5"),
        (
            {"max_position_embeddings": 7, "sliding_window": 8},
            "mesh: expected at most 1 processes for a longest sequence of 7, got 2",
        ),
    ):
        with pytest.raises(lk.InputError, match=message):
            lk.SequenceParallel(build(**fields), mesh)
    with pytest.raises(lk.InputError, match=r"model: expected one of .*, got LinformerForQuestionAnswering"):
        lk.SequenceParallel(build(lk.LinformerForQuestionAnswering), mesh)
    with pytest.raises(lk.InputError, match=r"mesh: expected one dimension, or one named sequence, got \['a', 'b'\]"):
        lk.SequenceParallel(build(), init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b")))
    model = build()
    parallel = lk.SequenceParallel(model, mesh)
    with pytest.raises(lk.InputError, match="model: expected a whole one, got one that is split already"):
        lk.SequenceParallel(model, mesh)
    with pytest.raises(lk.InputError, match="projection: expected a whole one to resize"):
        model.resize_sequence_length(74)
    check_input_errors(model, parallel)


def check_input_errors(model: torch.nn.Module, parallel: lk.SequenceParallel) -> None:
    batch = make_batch(29)
    with pytest.raises(lk.InputError, match="batch: expected the same on every process of the group"):
        parallel.shard(make_batch(29, seed=dist.get_rank()))
    masks = {"attention_mask": batch["attention_mask"].bfloat16()}
    for name, tensor in parallel.shard({**batch, **masks}).items():
        assert torch.equal(tensor.long(), parallel.shard(batch)[name])
    with pytest.raises(lk.InputError, match=r"attention_mask: expected .* 1 on real .*, got other numbers"):
        parallel.shard({**batch, "attention_mask": torch.zeros(6, 29).masked_fill(batch["labels"] < 0, -torch.inf)})
    masks["attention_mask"][0, : dist.get_rank()] = 0
    with pytest.raises(lk.InputError, match="batch: expected the same on every process of the group"):
        parallel.shard({**batch, **masks})
    with pytest.raises(lk.InputError, match="batch: expected input_ids or inputs_embeds, got neither"):
        parallel.shard({"labels": batch["labels"]})
    with pytest.raises(lk.InputError, match="position_ids: expected None"):
        parallel.shard({**batch, "position_ids": batch["input_ids"] % 5})
    with pytest.raises(lk.InputError, match="sequence length: expected at most 37, got 41"):
        parallel.shard(make_batch(41))
    with pytest.raises(lk.InputError, match=r"attention_mask: expected the mask of this process's piece, .*, got None"):
        model(batch["input_ids"][:, :5])
    with pytest.raises(lk.InputError, match="position_ids: expected None"):
        model(batch["input_ids"], batch["attention_mask"], position_ids=batch["input_ids"])
    with pytest.raises(lk.InputError, match=r"sequence length: expected at most 1[89], as this process has, got 29"):
        model(batch["input_ids"], batch["attention_mask"])


def test_models_and_inputs_that_are_refused(tmp_path):
    run(2, check_errors, tmp_path)
