"""Teacher and student of a distillation: loaded, checked and made to fit each other."""

from __future__ import annotations

import copy
import dataclasses

from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from linformer_kit.data.tokenizer import tokenizer_fingerprint
from linformer_kit.errors import InputError, renamed
from linformer_kit.interop.loading import auto_class_of, input_length, load_model
from linformer_kit.linearized.classes import LinearizedModel
from linformer_kit.linearized.layers import attention_layers
from linformer_kit.linearized.linearize import linearize_encoder
from linformer_kit.linearized.positions import check_positions, longest_input, set_positions
from linformer_kit.settings import DistillSettings, LinearizeSettings
from linformer_kit.training.adapter import add_adapter
from linformer_kit.training.tasks.answers import kind_of

_LINEARIZE_FIELDS = [field.name for field in dataclasses.fields(LinearizeSettings)]
_TEACHER, _STUDENT = "a pretrained encoder", "a linear student"
# Endings of the class names that can be teachers.
_TEACHERS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model")
# Kinds of answers that the pieces of a text have together: one for each token, or their mean.
_BY_TOKEN = ("words", "tokens", "embeddings")


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


def load_pair(settings: DistillSettings) -> Pair:
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
