"""The trainings of a study of learning: what each is, which there are, and one of them run."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import math
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from jsonargparse import ArgumentParser, Namespace
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate
from transformers import PreTrainedTokenizerFast, TrainerCallback

from linformer_kit.bench.settings import LearningSettings
from linformer_kit.configuration import LinformerConfig
from linformer_kit.data.documents import read_documents
from linformer_kit.data.files import find_files
from linformer_kit.data.masking import BlockMasker
from linformer_kit.data.tokenizer import load_tokenizer, start_token_id
from linformer_kit.errors import InputError
from linformer_kit.functional import spread_order
from linformer_kit.heads import LinformerForMaskedLM
from linformer_kit.pretrain import build_trainer, load_data, model_config, pretrain, starting_from
from linformer_kit.projection import SHORTER_INPUTS, SequenceProjection, Slots
from linformer_kit.settings import IGNORED_LABEL, ModelSettings, PretrainSettings
from linformer_kit.training.arguments import training_arguments
from linformer_kit.training.memory import keep_freed_memory
from linformer_kit.training.metrics import mean_token_loss
from linformer_kit.training.trainer import check_training

# What a variant may say beside settings of `linformer pretrain`.
OWN_NAMES = ("after", "minutes", "learning_rates")
TRIALS_FOLDER = "trials"
_SENTENCE_TOKENS = (10, 60)  # start and end included
_SENTENCES = 2000
_SENTENCE_BATCH = 32
_TIMED_UPDATES, _WARM_UPDATES = 20, 5


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        cell: Where.
        variant: What.
        learning_rate: Highest.
        seed: Of everything that is drawn.
        after: The variant whose model of the same cell and seed it goes on from.
        minutes: Time that it may take, which makes its number of updates; None: as many as its settings say.
        settings: Of `linformer pretrain`.
    """

    cell: str
    variant: str
    learning_rate: float
    seed: int
    after: str | None
    minutes: float | None
    settings: PretrainSettings = dataclasses.field(repr=False)

    @property
    def name(self) -> str:
        """A folder's name that no other trial of the study has."""
        return f"{self.kind}-lr{self.learning_rate:g}-seed{self.seed}"

    def model_before(self, folder: Path) -> str | None:
        """Folder of the model that it goes on from, in that of the study."""
        if self.after is None:
            return None
        earlier = dataclasses.replace(self, variant=self.after)
        return str(folder / TRIALS_FOLDER / earlier.name)

    @property
    def kind(self) -> str:
        """Cell and variant."""
        return "-".join(re.sub(r"\W+", "_", part) for part in (self.cell, self.variant))


def make_trial(study: LearningSettings, cell: str, variant: str, learning_rate: float, seed: int) -> Trial:
    """A trial with its settings: those of the study's base, changed by the cell and then by the variant.

    Raises:
        InputError: for a setting that `linformer pretrain` does not have or take.
    """
    changes = dict(study.variants[variant])
    own = {name: changes.pop(name, None) for name in OWN_NAMES}
    where = dict(study.cells[cell])
    if where.pop("english", False):
        where["train_file"] = study.english_file
    fields = dataclasses.asdict(study.base)
    for name, value in itertools.chain(where.items(), changes.items()):
        *path, last = name.split(".")
        place: Any = fields
        for part in path:
            place = place.get(part) if isinstance(place, dict) else None
        if not isinstance(place, dict) or (last not in place and path != ["trainer"]):
            raise InputError(f"{name}: expected a setting of linformer pretrain, in cell {cell} or variant {variant}")
        place[last] = value
    fields |= {"learning_rate": learning_rate, "seed": seed}
    settings = _parsed(fields)
    minutes = study.minutes if own["minutes"] is None else own["minutes"]
    return Trial(cell, variant, learning_rate, seed, own["after"], minutes, settings)


def _parsed(fields: dict[str, Any]) -> PretrainSettings:
    """Settings from names and values, types checked."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(PretrainSettings)
    try:
        values: Namespace = parser.parse_object(fields)
    except Exception as error:
        raise InputError(" ".join(str(error).split())) from None
    named = vars(values)
    return PretrainSettings(**{**named, "model": ModelSettings(**vars(named["model"]))})


def check_trial(trial: Trial) -> None:
    """Raise what the training would, as far as can be seen without data."""
    if trial.after is None:
        LinformerConfig(**dataclasses.asdict(trial.settings.model))
    check_training(trial.settings)


def timed(trial: Trial, seconds_per_update: float) -> Trial:
    """The trial with as many updates as fit in its minutes; warm-up, evaluations and checkpoints keep their share."""
    assert trial.minutes is not None
    settings = trial.settings
    updates = max(1, round(trial.minutes * 60 / seconds_per_update))
    scaled = {
        name: math.ceil(getattr(settings, name) * updates / settings.max_steps)
        for name in ("warmup_steps", "eval_steps", "save_steps")
    }
    return dataclasses.replace(trial, settings=dataclasses.replace(settings, max_steps=updates, **scaled))


def run_trial(
    trial: Trial, folder: Path, threads: int, projected_dims: list[int], sentence_file: list[str] | None
) -> dict[str, Any]:
    """Train, or finish what was cut off, and measure.

    Args:
        trial: What to train.
        folder: That of the study.
        threads: Of a CPU.
        projected_dims: Numbers of slots to measure with as well.
        sentence_file: Files of short texts to measure on as well.

    Returns:
        What stands in `learning.json` for it.
    """
    _alone(threads)
    place = folder / TRIALS_FOLDER / trial.name
    place.mkdir(parents=True, exist_ok=True)
    with (place / "log.txt").open("a", encoding="utf-8") as log, contextlib.redirect_stderr(log):
        settings = dataclasses.replace(
            trial.settings, output_dir=str(place), resume=True, from_model=trial.model_before(folder)
        )
        results, _ = pretrain(settings)
        (model,) = results["models"].values()
        kept = ("parameters", "updates", "validation_loss", "curve", "seconds", "tokens_per_second")
        return {
            **{name: getattr(trial, name) for name in ("cell", "variant", "learning_rate", "seed", "after", "minutes")},
            **{name: model[name] for name in kept},
            "unigram_entropy": results["unigram_entropy"],
            "corpus": {name: value for name, value in results["corpus"].items() if name != "description"},
            **_more_losses(place, settings, projected_dims, sentence_file),
        }


def seconds_per_update(trial: Trial, folder: Path, threads: int) -> float:
    """Median time of an update of the trial's model, data and optimizer included."""
    _alone(threads)
    updates = _WARM_UPDATES + _TIMED_UPDATES
    settings = dataclasses.replace(
        trial.settings, from_model=trial.model_before(folder), max_steps=updates, warmup_steps=1, eval_steps=updates + 1
    )
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stderr(io.StringIO()):
        keep_freed_memory()
        settings, model = starting_from(settings)
        data = load_data(settings)
        if model is None:
            model = LinformerForMaskedLM(model_config(settings, data.tokenizer, attention=settings.model.attention))
        trainer = build_trainer(settings, data, Path(temporary), model)
        trainer.args.eval_on_start = False
        clock = _Clock()
        trainer.add_callback(clock)
        trainer.train()
    return statistics.median(itertools.islice(clock.seconds(), _WARM_UPDATES, None))


def _alone(threads: int) -> None:
    """What a process that trains beside others needs."""
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()


class _Clock(TrainerCallback):
    """When each update ended."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def on_step_end(self, *arguments: Any, **named: Any) -> None:
        self._ends.append(time.perf_counter())

    def seconds(self) -> Iterator[float]:
        """Of each update but the first."""
        return (end - start for start, end in itertools.pairwise(self._ends))


def _more_losses(
    place: Path, settings: PretrainSettings, projected_dims: list[int], sentence_file: list[str] | None
) -> dict[str, Any]:
    """Losses with fewer slots, and of short texts with each way that a model has for them."""
    dims = [] if settings.model.attention == "full" else projected_dims
    if not dims and not sentence_file:
        return {}
    model = LinformerForMaskedLM.from_pretrained(place)
    tokenizer = load_tokenizer(str(place), max_length=model.config.max_position_embeddings)
    masking: dict[str, Any] = {"seed": settings.seed, "probability": settings.mlm_probability}
    bf16 = training_arguments(settings, place).bf16
    losses: dict[str, Any] = {}
    if dims:
        blocks = load_data(settings).validation
        batches = list(_batched([blocks[index] for index in range(len(blocks))], settings.per_device_eval_batch_size))
        losses["by_projected_dim"] = {}
        for dim in (dim for dim in dims if dim < model.config.largest_projected_dim):
            model.set_projected_dim(dim)
            losses["by_projected_dim"][dim] = mean_token_loss(model, batches, bf16=bf16)
        model.set_projected_dim()
    if sentence_file:
        rows = _sentences(sentence_file, tokenizer, BlockMasker(tokenizer, **masking))
        batches = [_padded(rows[index : index + _SENTENCE_BATCH]) for index in range(0, len(rows), _SENTENCE_BATCH)]
        losses["sentences"] = _by_form(model, lambda: mean_token_loss(model, batches, bf16=bf16))
    return losses


def _by_form(model: LinformerForMaskedLM, measure: Callable[[], float]) -> dict[str, float]:
    """What is measured with each way for short texts, and, beyond those, with slots masked that no text has reached."""
    projections = [module for module in model.modules() if isinstance(module, SequenceProjection)]
    if not projections:
        return {"": measure()}
    measured = {}
    for form in SHORTER_INPUTS:
        for projection in projections:
            projection.shorter_input = form
        measured[form] = measure()
    for projection in projections:
        projection.shorter_input = "prefix"
        projection.register_forward_hook(_mask_unreached, with_kwargs=True)
    return {**measured, "masked prefix": measure()}


def _mask_unreached(
    projection: SequenceProjection, inputs: tuple[torch.Tensor, ...], named: dict[str, Any], slots: list[Slots]
) -> list[Slots]:
    """Leaves out the slots whose windows, as E starts, begin behind the last token."""
    lengths = torch.tensor([inputs[0].shape[1]]) if named["lengths"] is None else named["lengths"]
    k = projection.projected_dim
    starts = torch.tensor([slot * projection.seq_len // k for slot in spread_order(k)], device=lengths.device)
    return [group._replace(empty=starts[: group.key.shape[2]] >= lengths[:, None]) for group in slots]


def _sentences(
    patterns: list[str], tokenizer: PreTrainedTokenizerFast, masker: BlockMasker
) -> list[dict[str, torch.Tensor]]:
    """The first short texts of a fitting length of which anything is masked, the longest last."""
    least, most = _SENTENCE_TOKENS
    most = min(most, tokenizer.model_max_length)
    rows: list[dict[str, torch.Tensor]] = []
    for text in read_documents(find_files(patterns, field="sentence_file"), document="line", column="sentence"):
        ids = [start_token_id(tokenizer), *tokenizer(text, add_special_tokens=False)["input_ids"]]
        if least <= len(ids) <= most and len(rows) < _SENTENCES:
            rows.append(masker(np.array(ids), epoch=0, index=len(rows)))
    rows = [row for row in rows if (row["labels"] != IGNORED_LABEL).any()]
    if not rows:
        raise InputError(f"sentence_file: expected texts of {least} to {most} tokens, got none")
    return sorted(rows, key=lambda row: len(row["input_ids"]))


def _padded(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    fill = {"input_ids": 0, "labels": IGNORED_LABEL, "attention_mask": 0}
    rows = [{**row, "attention_mask": torch.ones_like(row["input_ids"])} for row in rows]
    return {
        name: pad_sequence([row[name] for row in rows], batch_first=True, padding_value=value)
        for name, value in fill.items()
    }


def _batched(rows: list[dict[str, torch.Tensor]], size: int) -> Iterator[dict[str, torch.Tensor]]:
    for index in range(0, len(rows), size):
        yield default_collate(rows[index : index + size])
