"""Distillation: pretrained encoder → linear student → training on the teacher's outputs → checkpoint → results."""

from __future__ import annotations

import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from linformer_kit.data.encoding import Encoder
from linformer_kit.data.tokenizer import tokenizer_fingerprint
from linformer_kit.data.unlabelled import Inputs, load_inputs
from linformer_kit.environment import environment, versions
from linformer_kit.errors import DivergedError, InputError, renamed
from linformer_kit.interop.checkpoints.sentences import Files, sentence_files, write_files
from linformer_kit.interop.loading import auto_class_of, fingerprint, input_length, load_model
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.linearized.fields import EXACT
from linformer_kit.linearized.layers import attention_layers
from linformer_kit.linearized.linearize import linearize_encoder
from linformer_kit.models.positions import check_positions, longest_input, set_positions
from linformer_kit.report.distillation import write_distill_report
from linformer_kit.settings import (
    DistillSettings,
    LinearizeSettings,
    check_model_is_kept,
    portable,
    recorded_name,
)
from linformer_kit.training.adapter import (
    add_adapter,
    example_embedding,
    low_rank_parameters,
    made_adapter,
    write_adapter,
)
from linformer_kit.training.checkpoint import save_model
from linformer_kit.training.loop import Training
from linformer_kit.training.process import callers_random_state
from linformer_kit.training.run import Run, measurements
from linformer_kit.training.state import Plan
from linformer_kit.training.tasks.answers import kind_of
from linformer_kit.training.tasks.distillation import MEASURES, Distillation, learning_rate_share

_LINEARIZE_FIELDS = [field.name for field in dataclasses.fields(LinearizeSettings)]
_TEACHER, _STUDENT = "a pretrained encoder", "a linear student"
# Endings of the class names that can be teachers.
_TEACHERS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model")
# Kinds of answers that the pieces of a text have together: one for each token, or their mean.
_BY_TOKEN = ("words", "tokens", "embeddings")
ADAPTER = "adapter"  # subfolder of the output folder
# Endings of the class names of teachers whose inputs are whole texts.
_CLASSIFIERS = ("ForSequenceClassification", "ForQuestionAnswering")


@callers_random_state()
def distill(settings: DistillSettings) -> tuple[dict[str, Any], Path]:
    """Linearise a pretrained encoder and distil the original into it.

    Args:
        settings: The encoder, the texts and the training.

    Returns:
        The results, as in `metrics.json`, and the folder that holds them, the student, its tokenizer and checkpoints.

    Raises:
        InputError: for invalid settings, an unsuitable encoder or unsuitable texts. Existing files are kept.
        DivergedError: if training diverged; the results record it.
    """
    settings = dataclasses.replace(settings, layerwise_steps=_layerwise_steps(settings))
    check(settings)
    run = Run("distill", settings)
    pair = _load_pair(settings)
    beside = sentence_files(settings.student or settings.teacher, longer=settings.max_position_embeddings)
    with run.one_process_first():
        inputs = _load_inputs(settings, pair)
    fingerprints = {
        "text_fingerprint": inputs.fingerprint,
        "teacher_fingerprint": fingerprint(pair.teacher),
        "student_fingerprint": fingerprint(pair.student),
    }
    run.open({"text": inputs.description}, fingerprints)
    said = f"student, {pair.student.projection_matrix_count()} n → k matrices"
    training = run.train(_distillation(settings, pair, inputs), _plan(settings), said=said)
    results = _results(settings, pair, inputs, training)
    if training.diverged is None:
        _save(run, settings, pair, results, beside)
    run.write(functools.partial(write_distill_report, results))
    if training.diverged is not None:
        raise DivergedError(training.diverged)
    return results, run.folder


def _save(run: Run, settings: DistillSettings, pair: Pair, results: dict[str, Any], beside: Files) -> None:
    """Save the student, and the adapter if there is one: then the student is the base model with the adapter merged."""
    model, adapter, example = pair.student, None, {}
    if pair.base is not None:
        adapter = made_adapter(pair.student, pair.base, settings)
        model = linearize_encoder(pair.base, adapter.settings).eval()
        adapter.merge_into(model)
        example = example_embedding(model, pair.tokenizer)

    def write(folder: Path) -> None:
        write_files(beside, folder)
        if adapter is not None:
            write_adapter(adapter, example, results, folder / ADAPTER)

    save_model(model, pair.tokenizer, run.folder, beside=write)


def check(settings: DistillSettings) -> None:
    """Check the settings before the texts are processed.

    Raises:
        InputError: for invalid settings.
    """
    for model in (settings.teacher, settings.student):
        check_model_is_kept(model, settings.output_dir)
    layerwise = _layerwise_steps(settings)
    if not 0 <= layerwise <= settings.max_steps:
        raise InputError(f"layerwise_steps: expected 0 to {settings.max_steps}, got {settings.layerwise_steps}")
    if settings.packing and settings.text_pair_column is not None:
        raise InputError("packing: expected false for pairs of texts, got true")
    if settings.adapter and settings.student is not None:
        raise InputError(
            f"student: expected none with adapter, which changes the teacher itself, got {settings.student}"
        )
    if settings.adapter and settings.fully_shard:
        raise InputError("fully_shard: expected false with adapter, got true")
    if not settings.joint_learning_rate_factor > 0:
        raise InputError(f"joint_learning_rate_factor: expected more than 0, got {settings.joint_learning_rate_factor}")


@dataclasses.dataclass(frozen=True)
class Pair:
    """Teacher and student.

    Attributes:
        teacher: The model with full attention.
        student: The model with linear attention.
        tokenizer: The tokenizer of both; its `model_max_length` is the student's if that reads longer texts.
        attention_names: Names of the attention modules of student and teacher.
        longest: Length of the longest input, in tokens.
        piece_length: As for `Distillation`.
        base: The model that an adapter changes: the teacher as it was loaded. None: all weights are trained.
    """

    teacher: PreTrainedModel
    student: LinearizedModel
    tokenizer: PreTrainedTokenizerBase
    attention_names: tuple[list[str], list[str]]
    longest: int
    piece_length: int | None
    base: PreTrainedModel | None


def _load_pair(settings: DistillSettings) -> Pair:
    """Load the teacher and its student: a linearised copy of the teacher, or an earlier student.

    Raises:
        InputError: for a teacher that cannot be linearised, and for a student that does not match its teacher.
    """
    set_seed(settings.seed)
    with renamed("model", "teacher"):
        auto_class = auto_class_of(settings.teacher, _TEACHER)
        teacher, tokenizer = load_model(settings.teacher, auto_class, _TEACHER)
        if not type(teacher).__name__.endswith(_TEACHERS) or teacher.main_input_name != "input_ids":
            expected = ", ".join(_TEACHERS)
            raise InputError(f"model: expected an encoder of texts ({expected}), got {type(teacher).__name__}")
        base = copy.deepcopy(teacher).float() if settings.adapter else None
        names = [layer.name for layer in attention_layers(teacher)]
        if settings.student is None:
            student = linearize_encoder(copy.deepcopy(teacher), _linearize_settings(settings))
    if settings.student is not None:
        student = _earlier_student(settings, teacher, tokenizer)
    longest, limit = student.config.linformer["seq_len"], input_length(teacher, tokenizer, None)
    # A limit of the tokenizer below the teacher's positions, such as max_length of fine-tuning, stays.
    tokenizer.model_max_length = longest if longest > (longest_input(teacher) or limit) else min(longest, limit)
    piece_length = _piece_length(longest, limit, teacher, settings)
    teacher, student, both = teacher.float(), student.float(), (student.attention_names(), names)
    if settings.adapter:
        add_adapter(student, settings.adapter_rank)
    return Pair(teacher, student, tokenizer, both, longest, piece_length, base)


def _piece_length(longest: int, limit: int, teacher: PreTrainedModel, settings: DistillSettings) -> int | None:
    """Length of the pieces in which a teacher reads texts of up to `longest` tokens; None: whole, resized if need be.

    Args:
        longest: Longest input of the student in tokens.
        limit: Longest input of the teacher, by its positions and its tokenizer.
        teacher: The teacher.
        settings: How positions are resized.
    """
    if longest <= (longest_input(teacher) or limit):
        return None
    if kind_of(teacher) in _BY_TOKEN:
        return limit
    with renamed("seq_len", "max_position_embeddings"), renamed("mode", "resize_mode"):
        check_positions(teacher, longest, settings.resize_mode)
    set_positions(teacher, longest, settings.resize_mode)
    return None


def _earlier_student(
    settings: DistillSettings, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> LinearizedModel:
    with renamed("model", "student"):
        student, own_tokenizer = load_model(
            str(settings.student), auto_class_of(str(settings.student), _STUDENT), _STUDENT
        )
    given = _linearize_settings(settings)
    for name in _LINEARIZE_FIELDS:
        if getattr(given, name) != getattr(LinearizeSettings(), name):
            raise InputError(f"{name}: expected none with student, which has its own, got {getattr(given, name)!r}")
    base = type(teacher).__name__
    if not isinstance(student, LinearizedModel) or not isinstance(student, type(teacher)):
        kind = type(student).__name__
        raise InputError(f"student: expected a {base} made linear (`linformer convert --in_place`), got {kind}")
    for name in ("num_hidden_layers", "hidden_size", "vocab_size", "num_labels"):
        own, wanted = getattr(student.config, name), getattr(teacher.config, name)
        if own != wanted:
            raise InputError(f"student: expected {name} {wanted}, as the teacher has, got {own}")
    if tokenizer_fingerprint(own_tokenizer) != tokenizer_fingerprint(tokenizer):
        raise InputError(f"student: expected the tokenizer of the teacher, got another one in {settings.student}")
    return student


def _linearize_settings(settings: DistillSettings) -> LinearizeSettings:
    return LinearizeSettings(**{name: getattr(settings, name) for name in _LINEARIZE_FIELDS})


def _load_inputs(settings: DistillSettings, pair: Pair) -> Inputs:
    kind = type(pair.teacher).__name__
    whole = kind.endswith(_CLASSIFIERS) or settings.text_pair_column is not None
    packing = not whole if settings.packing is None else settings.packing
    encoder = Encoder(pair.tokenizer, pair.longest)
    inputs = load_inputs(settings, encoder, packing=packing, masked=kind_of(pair.teacher) == "words")
    together = settings.per_device_train_batch_size * PartialState().num_processes
    if len(inputs.train) < together:
        there = f"the {len(inputs.train)} training inputs"
        raise InputError(f"per_device_train_batch_size: expected at most {there} in all processes, got {together}")
    return inputs


def _distillation(settings: DistillSettings, pair: Pair, inputs: Inputs) -> Distillation:
    """The training task."""
    return Distillation(
        pair.student,
        pair.tokenizer,
        teacher=pair.teacher,
        attention_names=pair.attention_names,
        train=inputs.train,
        validation=inputs.validation,
        longest=pair.longest,
        piece_length=pair.piece_length,
        seed=settings.seed,
        layerwise_steps=_layerwise_steps(settings),
        temperature=settings.temperature,
    )


def _plan(settings: DistillSettings) -> Plan:
    """The plan: warm-up and linear decay twice, first for layerwise training, then for joint training."""
    layerwise = _layerwise_steps(settings)
    schedule = functools.partial(
        learning_rate_share,
        layerwise=layerwise,
        updates=settings.max_steps,
        warmup=settings.warmup_steps,
        joint=settings.joint_learning_rate_factor,
    )
    return Plan(
        updates=settings.max_steps,
        schedule=schedule,
        seed=settings.seed,
        evaluate_every=settings.eval_steps,
        save_every=settings.save_steps,
        evaluate_first=True,
        # Gradients are much larger in joint training; with the old moments, AdamW's steps would be too large and undo
        # the layerwise training (reproduce/LOG.md).
        restart=layerwise,
    )


def _results(settings: DistillSettings, pair: Pair, inputs: Inputs, training: Training) -> dict[str, Any]:
    teacher, student = pair.teacher, pair.student
    linear = student.config.linformer
    trained = sum(parameter.numel() for parameter in student.parameters() if parameter.requires_grad)
    return {
        "command": "distill",
        "environment": environment(training.engine.device),
        "teacher": {
            "name": recorded_name(settings.teacher),
            "type": teacher.config.model_type,
            "class": type(teacher).__name__,
            "parameters": teacher.num_parameters(),
            "layers": teacher.config.num_hidden_layers,
        },
        "student": {
            "parameters": student.num_parameters() - low_rank_parameters(student),
            "layers": student.config.num_hidden_layers,
            "projection_matrices": student.projection_matrix_count(),
            **{name: linear[name] for name in ("seq_len", "projected_dim", "sharing", "projection", "shorter_input")},
            "exact": {name: linear[name] for name in EXACT},
            "adapter": None if pair.base is None else {"rank": settings.adapter_rank, "parameters": trained},
        },
        "text": {
            "description": inputs.description,
            "train": len(inputs.train),
            "validation": len(inputs.validation),
            "longest": pair.longest,
            "piece_length": pair.piece_length,
        },
        **measurements(training),
        "layerwise_steps": _layerwise_steps(settings),
        "curve": {name: list(map(list, training.state.logged(f"eval_{name}").items())) for name in MEASURES},
        "settings": portable(settings),
        "versions": versions(),
    }


def _layerwise_steps(settings: DistillSettings) -> int:
    return settings.max_steps // 4 if settings.layerwise_steps is None else settings.layerwise_steps
