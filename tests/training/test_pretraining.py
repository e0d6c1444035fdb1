"""The trainer: repeatable order, exact loss, exact accumulation and resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainingArguments, set_seed

from linformer_kit import LinformerForMaskedLM
from linformer_kit.data.masking import MaskedBlocks
from linformer_kit.data.tokenizer import train_tokenizer
from linformer_kit.training.metrics import masked_token_losses
from linformer_kit.training.pretraining import PretrainTrainer

SEQ_LEN = 23


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["def one(): return two\n"] * 3, vocab_size=269, max_length=SEQ_LEN)


def blocks(tokenizer, count: int, seed: int) -> MaskedBlocks:
    ids = np.random.default_rng(seed).integers(5, len(tokenizer), size=(count, SEQ_LEN), dtype=np.int32)
    return MaskedBlocks(Dataset.from_dict({"input_ids": list(ids)}), tokenizer, seed=3, probability=0.3)


@pytest.fixture
def build(config, tokenizer, tmp_path):
    """A factory of trainers that differ only in what they are given."""

    def make(folder: str = "run", **arguments: object) -> PretrainTrainer:
        set_seed(1)
        own = {name: arguments.pop(name) for name in list(arguments) if name.startswith("projection_")}
        fields = {"max_position_embeddings": SEQ_LEN, "vocab_size": len(tokenizer), "hidden_dropout_prob": 0.1}
        defaults = {"max_steps": 7, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "save_steps": 3}
        defaults |= {"logging_steps": 1, "report_to": "none", "remove_unused_columns": False, "disable_tqdm": True}
        defaults |= {"save_strategy": "steps", "dataloader_pin_memory": False, "seed": 5, "use_cpu": True}
        return PretrainTrainer(
            LinformerForMaskedLM(config(**{**fields, **arguments.pop("fields", {})})),
            TrainingArguments(output_dir=str(tmp_path / folder), **{**defaults, **arguments}),
            train_dataset=blocks(tokenizer, 19, seed=0),
            eval_dataset=blocks(tokenizer, 7, seed=1),
            processing_class=tokenizer,
            seq_len=SEQ_LEN,
            **own,
        )

    return make


def losses(trainer: PretrainTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.e2e
def test_the_head_runs_on_masked_tokens_only(build):
    trainer, seen = build(max_steps=2), []
    trainer.model.lm_head.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    trainer.train()
    masked = [int((trainer.train_dataset[index]["labels"] != -100).sum()) for index in range(19)]
    assert len(seen) == 2 and all(len(shape) == 2 and shape[0] <= 4 * max(masked) < 4 * SEQ_LEN for shape in seen)


def test_validation_loss_is_the_mean_over_all_tokens(build):
    trainer = build(per_device_eval_batch_size=3)
    items = [trainer.eval_dataset[index] for index in range(7)]
    batch = {name: torch.stack([item[name] for item in items]) for name in ("input_ids", "labels")}
    with torch.no_grad():
        sums, counts = masked_token_losses(trainer.model.eval(), batch["input_ids"], batch["labels"])
    assert len(set(counts.tolist())) > 1, "else a mean of means would pass"
    assert trainer.evaluate()["eval_loss"] == pytest.approx((sums.sum() / counts.sum()).item(), rel=1e-6)


@pytest.mark.e2e
def test_accumulated_updates_equal_those_of_the_large_batch(build):
    quiet = {"fields": {"hidden_dropout_prob": 0.0}}
    large, small = (
        build("large", **quiet),
        build("small", per_device_train_batch_size=2, gradient_accumulation_steps=2, **quiet),
    )
    large.train(), small.train()
    assert losses(small) == pytest.approx(losses(large), rel=1e-4)
    for ours, theirs in zip(small.model.parameters(), large.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sharing", ["none", "headwise", "layerwise"])
@pytest.mark.e2e
def test_e_and_f_can_learn_at_a_rate_of_their_own(build, sharing):
    """With a factor of 0 and decay they stand still; all else learns as it does without."""
    usual = build("usual", weight_decay=0.1, fields={"sharing": sharing})
    still = build("still", weight_decay=0.1, fields={"sharing": sharing}, projection_learning_rate_factor=0.0)
    start = {name: parameter.clone() for name, parameter in still.model.named_parameters()}
    usual.train(), still.train()
    for name, parameter in still.model.named_parameters():
        assert torch.equal(parameter, start[name]) == ("projection." in name), name
    assert not torch.equal(usual.model.lm_head.dense.weight, still.model.lm_head.dense.weight)


@pytest.mark.parametrize(
    ("factor", "decay", "expected"),
    [
        (1.0, None, []),
        (1.0, 0.01, []),
        (0.5, None, [(0.5e-2, 0.01)]),
        (1.0, 0.0, [(1e-2, 0.0)]),
        (2.0, 0.3, [(2e-2, 0.3)]),
    ],
)
def test_groups_of_the_optimizer(build, factor, decay, expected):
    """Each parameter in one group; E and F in a third only where they have settings of their own."""
    trainer = build(weight_decay=0.01, projection_learning_rate_factor=factor, projection_weight_decay=decay)
    groups = trainer.create_optimizer().param_groups
    found = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(found) == sorted(id(parameter) for parameter in trainer.model.parameters())
    assert [(group["lr"], group["weight_decay"]) for group in groups[2:]] == expected
    matrices = {id(p) for name, p in trainer.model.named_parameters() if "projection." in name}
    if expected:
        assert {id(parameter) for parameter in groups[2]["params"]} == matrices and len(matrices) == 4
    assert [(group["lr"], group["weight_decay"]) for group in groups[:2]] == [(1e-2, 0.01), (1e-2, 0.0)]


def test_groups_of_full_attention(build):
    trainer = build(projection_learning_rate_factor=0.5, fields={"attention": "full"})
    assert len(trainer.create_optimizer().param_groups) == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.e2e
def test_resumed_equals_uninterrupted(build, tmp_path, workers):
    """In mid-epoch (update 3 of 5) and in the second epoch (update 6), dropout and masks included."""
    whole = build("whole", dataloader_num_workers=workers)
    whole.train()
    assert len(set(losses(whole))) == 7
    for step in (3, 6):
        resumed = build("whole", dataloader_num_workers=workers)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.e2e
def test_a_resumed_run_evaluates_saves_and_logs_as_often_as_it_is_told(build, tmp_path):
    build("whole", eval_strategy="steps", eval_steps=3).train()
    resumed = build("whole", eval_strategy="steps", eval_steps=2, save_steps=5, logging_steps=4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    later = [entry for entry in resumed.state.log_history if entry["step"] > 3]
    assert [entry["step"] for entry in later if "eval_loss" in entry] == [4, 6, 7], "and at the end"
    assert [entry["step"] for entry in later if "loss" in entry] == [4]
    assert (tmp_path / "whole" / "checkpoint-5").exists()


@pytest.mark.e2e
def test_every_epoch_has_its_own_order_and_masks(build):
    trainer = build(max_steps=10)
    seen: list[torch.Tensor] = []
    forward = trainer.model.forward
    trainer.model.forward = lambda **batch: (seen.append(batch["labels"]), forward(**batch))[1]
    trainer.train()
    rows = torch.cat(seen)
    assert len(rows) == 38
    first, second = ({tuple(row.tolist()) for row in part} for part in (rows[:19], rows[19:]))
    assert len(first) == 19 and not first & second
    expected = {tuple(trainer.train_dataset[(1, index)]["labels"].tolist()) for index in range(19)}
    assert second == expected


@pytest.mark.e2e
def test_tokens_per_second_counts_this_run(build):
    trainer = build(gradient_accumulation_steps=2, max_steps=2)
    trainer.train()
    assert trainer.progress.each == 4 * 2 * SEQ_LEN
    assert trainer.progress.updates == 2 and trainer.progress.rate > 0


@pytest.mark.parametrize(
    "arguments", [{}, {"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 3, "dataloader_drop_last": True}]
)  # fmt: skip
@pytest.mark.e2e
def test_what_is_counted_is_what_the_model_has_seen(build, arguments):
    """19 sequences in batches of 4: the last of an epoch has 3, and its update may have fewer batches."""
    trainer = build(max_steps=7, **arguments)
    seen: list[int] = []
    training_step = trainer.training_step

    def counted(model, inputs, *rest):
        seen.append(inputs["input_ids"].numel())
        return training_step(model, inputs, *rest)

    trainer.training_step = counted
    trainer.train()
    assert trainer.progress.taken == sum(seen)
    assert trainer.progress.rate == sum(seen) / trainer.progress.seconds


@pytest.mark.e2e
def test_a_line_of_the_log_says_how_fast_how_long_and_how_large(build):
    trainer = build()
    trainer.train()
    lines = [entry for entry in trainer.state.log_history if "loss" in entry]
    names = {"loss", "grad_norm", "learning_rate", "tokens_per_second", "seconds_left", "memory_mib"}
    assert len(lines) == 7 and all(names <= set(line) for line in lines)
    assert all(line["tokens_per_second"] > 0 and 10 < line["memory_mib"] < 1e6 for line in lines)
    assert lines[-1]["seconds_left"] == 0 and lines[0]["seconds_left"] == pytest.approx(
        6 * 4 * SEQ_LEN / lines[0]["tokens_per_second"]
    )


@pytest.mark.e2e
def test_checkpoints_hold_the_tokenizer(build, tmp_path):
    build().train()
    assert (Path(tmp_path) / "run" / "checkpoint-3" / "tokenizer.json").exists()
