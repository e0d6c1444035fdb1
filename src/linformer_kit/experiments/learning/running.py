"""Run and measure one training of a learning study, and measure time and memory of its updates."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch.utils.data import default_collate

from linformer_kit.data.masked_text import load_masked_text
from linformer_kit.data.tokenizer import load_tokenizer
from linformer_kit.environment import best_device
from linformer_kit.errors import InputError
from linformer_kit.experiments.learning.short_texts import short_text_losses
from linformer_kit.experiments.learning.trials import Trial
from linformer_kit.experiments.measure import PeakMemory, synchronize
from linformer_kit.files.writing import whole_folder
from linformer_kit.interop.full_attention import convert_full_attention
from linformer_kit.models.heads import LinformerForMaskedLM
from linformer_kit.settings import PretrainSettings
from linformer_kit.training import pretrain
from linformer_kit.training.loop import Training
from linformer_kit.training.memory import keep_freed_memory
from linformer_kit.training.metrics import mean_token_loss

_TRIALS_FOLDER = "trials"
_OF_TOKENIZER = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
_CONVERTED_FOLDER = "start"  # in the folder of a trial: the model that it continues, converted
_TIMED_UPDATES, _WARM_UPDATES = 20, 5


class UpdateCost(NamedTuple):
    """What an update of a model takes: median time in seconds, and peak memory in bytes, None if not measurable."""

    seconds: float
    peak_bytes: int | None


def run_trial(
    trial: Trial, folder: Path, threads: int, projected_dims: list[int], sentence_file: list[str] | None
) -> dict[str, Any]:
    """Train, or resume an interrupted training, and measure.

    Args:
        trial: The training.
        folder: Folder of the study.
        threads: Number of CPU threads.
        projected_dims: Smaller values of k to evaluate with as well.
        sentence_file: Files of short texts to evaluate on as well.

    Returns:
        The entry of `learning.json`; non-finite losses are None.
    """
    _configure_worker(threads)
    own = folder / _TRIALS_FOLDER / trial.name
    own.mkdir(parents=True, exist_ok=True)
    with (own / "log.txt").open("a", encoding="utf-8") as log, contextlib.redirect_stderr(log):
        settings = dataclasses.replace(
            trial.settings, output_dir=str(own), resume=True, from_model=_before(trial, folder, own)
        )
        results, _ = pretrain.pretrain(settings)
        (model,) = results["models"].values()
        loss = _finite(model["validation_loss"])
        said = ("name", "kind", "cell", "variant", "learning_rate", "seed", "minutes", "before")
        measured = ("parameters", "updates", "seconds", "tokens_per_second", "bf16")
        return {
            **{name: getattr(trial, name) for name in said},
            **{name: model[name] for name in measured},
            "validation_loss": loss,
            "curve": [[update, _finite(loss)] for update, loss in model["curve"]],
            "unigram_entropy": results["unigram_entropy"],
            "corpus": {name: value for name, value in results["corpus"].items() if name != "description"},
            # A training that diverged leaves no model.
            **({} if loss is None else _more_losses(own, settings, model["bf16"], projected_dims, sentence_file)),
        }


def cost_of_update(trial: Trial, folder: Path, threads: int) -> UpdateCost:
    """Time and memory of an update of the trial's model, data and optimizer included; runs in a fresh process.

    Memory is the peak from before the first update to the end of the last one, minus the memory in use before: weights
    and libraries. So gradients and AdamW's moments count, and the evaluation at the end does not. On a CPU it is VmHWM
    minus VmRSS. Freed memory stays resident (`keep_freed_memory`), so that is the size to which the updates make the
    heap grow: their largest live memory and what fragmentation adds. What was freed before the first update is
    returned to the system first, and counts if an update uses it.
    """
    _configure_worker(threads)
    updates = _WARM_UPDATES + _TIMED_UPDATES
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stderr(io.StringIO()):
        settings = dataclasses.replace(
            trial.settings,
            from_model=_before(trial, folder, Path(temporary)),
            max_steps=updates,
            warmup_steps=1,
            eval_steps=updates + 1,
            save_steps=updates + 1,
        )
        settings, model = pretrain.starting_from(settings)
        data = load_masked_text(settings)
        if model is None:
            config = pretrain.model_config(settings, data.tokenizer, attention=settings.model.attention)
            model = LinformerForMaskedLM(config)
        task = pretrain.masked_language_model(settings, data, model)
        plan = dataclasses.replace(pretrain.plan(settings), evaluate_first=False)
        meter = _Meter(best_device())
        training = Training(task, settings, plan, Path(temporary), after_update=meter.updated)
        meter.start()
        training.run()
    return UpdateCost(statistics.median(itertools.islice(meter.seconds(), _WARM_UPDATES, None)), meter.peak_bytes)


class _Meter:
    """Records when each update ended, and the peak memory up to then.

    Attributes:
        peak_bytes: Peak memory from `start` to the end of the last update so far; None if not measurable.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ends: list[float] = []
        self._memory: PeakMemory | None = None
        self.peak_bytes: int | None = None

    def start(self) -> None:
        """Start to measure memory, if this system can."""
        with contextlib.suppress(InputError):
            self._memory = PeakMemory(self._device)

    def updated(self) -> None:
        """Record the end of an update. Memory is read here, as an evaluation follows the last one."""
        synchronize(self._device)
        self._ends.append(time.perf_counter())
        if self._memory is not None:
            self.peak_bytes = self._memory.bytes_so_far()

    def seconds(self) -> Iterator[float]:
        """Seconds of each update except the first."""
        return (end - start for start, end in itertools.pairwise(self._ends))


def _before(trial: Trial, folder: Path, own: Path) -> str | None:
    """The folder of the model that a trial continues; a converted one is saved below `own`, its folder."""
    if trial.before is None:
        return None
    before = (folder / _TRIALS_FOLDER / trial.before).resolve()
    if not trial.converts:
        return str(before)
    converted = own.resolve() / _CONVERTED_FOLDER
    if not converted.exists():
        transformers.set_seed(trial.settings.seed)
        fields = dataclasses.asdict(trial.settings.model)
        for name in _OF_TOKENIZER:
            del fields[name]
        model = convert_full_attention(str(before), fields, trial.settings.resize_mode).model
        with whole_folder(converted) as made:
            model.save_pretrained(made)
            load_tokenizer(str(before), max_length=model.config.max_position_embeddings).save_pretrained(made)
    return str(converted)


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _configure_worker(threads: int) -> None:
    """Set up a process that trains in parallel with others."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()


def _more_losses(
    own: Path, settings: PretrainSettings, bf16: bool, projected_dims: list[int], sentence_file: list[str] | None
) -> dict[str, Any]:
    """Losses with fewer slots, and on short texts."""
    if not projected_dims and not sentence_file:
        return {}
    settings, model = pretrain.starting_from(dataclasses.replace(settings, from_model=str(own), resize_to=None))
    assert model is not None
    config = model.config
    losses: dict[str, Any] = {}
    dims = [] if config.attention == "full" else [dim for dim in projected_dims if dim < config.largest_projected_dim]
    if dims:
        blocks = load_masked_text(settings).validation
        size = settings.per_device_eval_batch_size
        batches = [
            default_collate([blocks[index] for index in range(start, min(start + size, len(blocks)))])
            for start in range(0, len(blocks), size)
        ]
        losses["by_projected_dim"] = {}
        for dim in dims:
            model.set_projected_dim(dim)
            losses["by_projected_dim"][str(dim)] = _finite(mean_token_loss(model, batches, bf16=bf16))
        model.set_projected_dim()
    if sentence_file:
        tokenizer = load_tokenizer(str(own), max_length=config.max_position_embeddings)
        masking: dict[str, Any] = {"seed": settings.seed, "probability": settings.mlm_probability}
        found = short_text_losses(model, tokenizer, sentence_file, bf16=bf16, **masking)
        losses["sentences"] = {form: _finite(loss) for form, loss in found.items()}
    return losses
