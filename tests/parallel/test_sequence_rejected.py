"""What a model that is split over processes rejects, on every process."""

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
        ({"attention": "full"}, "projection: expected linear, .*, got full attention"),
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
    ids, mask = batch["input_ids"], batch["attention_mask"]
    for name, tensor in parallel.shard({**batch, "attention_mask": mask.bfloat16()}).items():
        assert torch.equal(tensor.long(), parallel.shard(batch)[name])
    other = mask.clone()
    other[0, : dist.get_rank()] = 0
    for wrong, message in (
        (make_batch(29, seed=dist.get_rank()), "batch: expected the same on every process of the group"),
        ({**batch, "attention_mask": other.bfloat16()}, "batch: expected the same on every process of the group"),
        ({"labels": batch["labels"]}, "batch: expected input_ids or inputs_embeds, got neither"),
        ({**batch, "position_ids": ids % 5}, "position_ids: expected None"),
        (make_batch(41), "sequence length: expected at most 37, got 41"),
        (
            {**batch, "attention_mask": torch.zeros(6, 29).masked_fill(batch["labels"] < 0, -torch.inf)},
            r"attention_mask: expected .* 1 on real .*, got other numbers",
        ),
    ):
        with pytest.raises(lk.InputError, match=message):
            parallel.shard(wrong)
    for inputs, message in (
        ({"input_ids": ids[:, :5]}, "attention_mask: expected the mask of this process's piece, .*, got None"),
        ({"input_ids": ids, "attention_mask": mask, "position_ids": ids}, "position_ids: expected None"),
        ({"input_ids": ids, "attention_mask": mask}, "length: expected at most 1[89], as this process has, got 29"),
    ):
        with pytest.raises(lk.InputError, match=message):
            model(**inputs)


def test_models_and_inputs_that_are_rejected(tmp_path):
    run(2, check_errors, tmp_path)
