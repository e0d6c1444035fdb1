"""Distillation: pretrained encoder → linear student → training on the teacher's outputs → checkpoint → results."""

from __future__ import annotations

import copy
import dataclasses
import logging
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from linformer_cli.errors import DivergedError, InputError, check_input, renamed
from linformer_cli.settings import DistillSettings, model_label
from linformer_kit.data.passages import Inputs, load_inputs
from linformer_kit.data.tokenizer import Encoder, tokenizer_fingerprint
from linformer_kit.interop.checkpoints import Files, sentence_files, warn_of_left_out, write_files
from linformer_kit.interop.loading import input_length, load_model, model_fingerprint
from linformer_kit.linearized.classes import EXACT, LinearizedModel
from linformer_kit.linearized.linearize import linearize_encoder
from linformer_kit.models.base import check_positions, longest_input, set_positions
from linformer_kit.report.training import write_distill_report
from linformer_kit.training.adapter import LOW_RANK, add_adapter, made_adapter, write_adapter
from linformer_kit.training.checkpoint import save_model
from linformer_kit.training.distillation_task import MEASURES, SPREAD, Distillation, kind_of, two_schedules
from linformer_kit.training.process import callers_random_state, keep_freed_memory
from linformer_kit.training.run import Run, print_results
from linformer_kit.training.state import Plan

# Endings of the class names that can be teachers.
_OF_TOKENS = ("ForMaskedLM", "ForTokenClassification", "Model")
_OF_TEXTS = "ForSequenceClassification"
ADAPTER = "adapter"  # subfolder of the output folder

logger = logging.getLogger(__name__)


def main(settings: DistillSettings) -> None:
    """Distil and print the results."""
    keep_freed_memory()
    _, folder = distill(settings)
    print_results(folder, f"Saved in {folder}; AutoModel loads it after `import linformer_kit`.")


@callers_random_state()
def distill(settings: DistillSettings) -> tuple[dict[str, Any], Path]:
    """Linearise a pretrained encoder and distil the original into it.

    Returns:
        The results, as in `metrics.json`, and the folder that holds them, the student, its tokenizer and checkpoints.

    Raises:
        InputError: for invalid settings, an unsuitable encoder or unsuitable texts. Existing files are kept.
        DivergedError: if training diverged; the results record it.
    """
    layerwise = settings.max_steps // 4 if settings.layerwise_steps is None else settings.layerwise_steps
    check_input(0 <= layerwise <= settings.max_steps, "layerwise_steps", f"0 to {settings.max_steps}", layerwise)
    if settings.packing and settings.text_pair_column is not None:
        raise InputError("packing: expected false for pairs of texts, got true")
    if settings.adapter_rank and settings.fully_shard:
        raise InputError("fully_shard: expected false with adapter_rank, got true")
    settings = dataclasses.replace(settings, layerwise_steps=layerwise)
    with Run("distill", settings) as run:
        return _distill(run, settings, layerwise), run.folder


def _distill(run: Run, settings: DistillSettings, layerwise: int) -> dict[str, Any]:
    pair = _load_pair(settings)
    if getattr(pair.teacher.config, "trained_pieces", False):
        logger.warning("model: reads long texts as pieces; it is distilled on their first %d tokens only", pair.longest)
    extra_files = sentence_files(settings.model, longer=pair.longest)
    warn_of_left_out(settings.model, extra_files)
    with run.process.local_main_process_first():  # the others read its cache
        inputs = _load_inputs(settings, pair, run.process.num_processes)
    fingerprints = {
        "text_fingerprint": inputs.fingerprint,
        "teacher_fingerprint": model_fingerprint(pair.teacher),
        "student_fingerprint": model_fingerprint(pair.student),
        "tokenizer_fingerprint": tokenizer_fingerprint(pair.tokenizer),
    }
    run.open({"text": inputs.description}, fingerprints)
    task = Distillation(
        pair.student,
        pair.tokenizer,
        teacher=pair.teacher,
        train=inputs.train,
        validation=inputs.validation,
        piece_length=pair.piece_length,
        seed=settings.seed,
        layerwise_steps=layerwise,
    )
    label = f"student, {pair.student.projection_matrix_count()} n → k matrices"
    run.train(task, _plan(settings, layerwise), label=label)
    results = _results(run, settings, pair, inputs)
    if run.diverged is None:
        _save(run, settings, pair, results, extra_files)
    run.write(write_distill_report, results)
    if run.diverged is not None:
        raise DivergedError(run.diverged)
    return results


@dataclasses.dataclass(frozen=True)
class Pair:
    """Teacher, with full attention, and student, with linear attention."""

    teacher: PreTrainedModel
    student: LinearizedModel
    tokenizer: PreTrainedTokenizerBase  # its `model_max_length` is the student's if that reads longer texts
    longest: int  # longest input, in tokens
    piece_length: int | None  # as for `Distillation`
    base: PreTrainedModel | None  # what an adapter changes: the teacher as it was loaded; None: all weights are trained


def _load_pair(settings: DistillSettings) -> Pair:
    """Load the teacher and linearise a copy of it, the student; an `InputError` if it cannot be linearised."""
    if settings.layers == []:
        raise InputError("layers: expected one or more to distil, got none")
    set_seed(settings.seed)
    teacher, tokenizer, *_ = load_model(settings.model, None, "a pretrained encoder")
    kinds = (*_OF_TOKENS, _OF_TEXTS)
    if not type(teacher).__name__.endswith(kinds) or teacher.main_input_name != "input_ids":
        expected = ", ".join(kinds)
        raise InputError(f"model: expected an encoder of texts ({expected}), got {type(teacher).__name__}")
    base = copy.deepcopy(teacher).float() if settings.adapter_rank else None
    student = linearize_encoder(copy.deepcopy(teacher), settings)
    longest, limit = student.config.linformer["seq_len"], input_length(teacher, tokenizer, None)
    is_longer = longest > (longest_input(teacher) or limit)
    # The length of fine-tuning stays; an author's limit below the positions says nothing of the student.
    is_trained = getattr(teacher.config, "trained_columns", None) is not None
    tokenizer.model_max_length = min(longest, limit) if is_trained and not is_longer else longest
    # Only what a model says of each token, or its mean, can be put together from pieces.
    in_pieces = is_longer and type(teacher).__name__.endswith(_OF_TOKENS)
    if is_longer and not in_pieces:
        with renamed("seq_len", "max_position_embeddings"), renamed("mode", "resize_mode"):
            check_positions(teacher, longest, settings.resize_mode)
        set_positions(teacher, longest, settings.resize_mode)
    teacher, student = teacher.float(), student.float()
    if settings.adapter_rank is not None:
        add_adapter(student, settings.adapter_rank)
    return Pair(teacher, student, tokenizer, longest, limit if in_pieces else None, base)


def _load_inputs(settings: DistillSettings, pair: Pair, processes: int) -> Inputs:
    whole = type(pair.teacher).__name__.endswith(_OF_TEXTS) or settings.text_pair_column is not None
    packing = not whole if settings.packing is None else settings.packing
    encoder = Encoder(pair.tokenizer, pair.longest)
    inputs = load_inputs(settings, encoder, packing=packing, masked=kind_of(pair.teacher) == "words")
    update_size, limit = settings.per_device_train_batch_size * processes, len(inputs.train)
    update_size *= settings.gradient_accumulation_steps
    expected = f"at most the {limit} training inputs in an update of all processes"
    check_input(update_size <= limit, "per_device_train_batch_size", expected, update_size)
    return inputs


def _plan(settings: DistillSettings, layerwise: int) -> Plan:
    return Plan(
        updates=settings.max_steps,
        schedule=two_schedules(
            layerwise,
            updates=settings.max_steps,
            warmup=settings.warmup_steps,
            joint=settings.joint_learning_rate_factor,
        ),
        seed=settings.seed,
        evaluate_every=settings.eval_steps,
        save_every=settings.save_steps,
        evaluate_first=True,
        # Gradients are much larger in joint training; with the old moments, AdamW's steps would be too large and undo
        # the layerwise training (reproduce/LOG.md).
        restart=layerwise,
    )


def _results(run: Run, settings: DistillSettings, pair: Pair, inputs: Inputs) -> dict[str, Any]:
    teacher, student = pair.teacher, pair.student
    linear = student.config.linformer
    trained = sum(parameter.numel() for parameter in student.parameters() if parameter.requires_grad)
    kept = sum(parameter.numel() for name, parameter in student.named_parameters() if LOW_RANK not in name)
    return run.results(
        teacher={
            "name": model_label(settings.model),
            "type": teacher.config.model_type,
            "class": type(teacher).__name__,
            "parameters": teacher.num_parameters(),
            "layers": teacher.config.num_hidden_layers,
        },
        student={
            "parameters": kept,
            "layers": student.config.num_hidden_layers,
            "projection_matrices": student.projection_matrix_count(),
            **{name: linear[name] for name in ("seq_len", "projected_dim", "sharing", "projection", "shorter_input")},
            "exact": {name: linear[name] for name in EXACT},
            "adapter": None if pair.base is None else {"rank": settings.adapter_rank, "parameters": trained},
        },
        text={
            "description": inputs.description,
            "train": len(inputs.train),
            "validation": len(inputs.validation),
            "longest": pair.longest,
            "piece_length": pair.piece_length,
        },
        layerwise_steps=settings.layerwise_steps,
        spread=SPREAD,
        curve={name: run.state.curve(f"eval_{name}") for name in MEASURES},
    )


def _save(run: Run, settings: DistillSettings, pair: Pair, results: dict[str, Any], extra_files: Files) -> None:
    """Save the student, and the adapter if there is one: then the student is the base model with the adapter merged."""
    model, adapter = pair.student, None
    if pair.base is not None:
        adapter = made_adapter(pair.student, pair.base, settings)
        model = linearize_encoder(pair.base, adapter.settings).eval()
        adapter.merge_into(model)

    def write(folder: Path) -> None:
        write_files(extra_files, folder)
        if adapter is not None:
            write_adapter(adapter, results, folder / ADAPTER)

    save_model(model, pair.tokenizer, run.folder, extra_files=write)
