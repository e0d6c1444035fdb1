"""Models and tokenizers from folders and the hub, refused in one line where they are not whole."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from linformer_kit.errors import InputError, input_errors, renamed
from linformer_kit.files.manifest import MANIFEST, damage
from linformer_kit.interop.checkpoints.pretrained import Weights, check_pretrained_folder, check_size, read_config
from linformer_kit.linearized.positions import longest_input
from linformer_kit.settings import ResizeMode, names_folder

# One of them has the vocabulary of every tokenizer that is read here.
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)

# Ends of the names of encoders' classes, and who makes them; of models that generate text there are none.
_KINDS = {
    "ForMaskedLM": AutoModelForMaskedLM,
    "ForPreTraining": AutoModelForPreTraining,
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
    "ForQuestionAnswering": AutoModelForQuestionAnswering,
    "ForMultipleChoice": AutoModelForMultipleChoice,
    "ForImageClassification": AutoModelForImageClassification,
    "LMHeadModel": None,
    "Model": AutoModel,
}

_RANDOM = "names_of_random_weights"  # attribute of a model that was loaded here


def load_model(
    name: str, auto_class: Any, kind: str, *, head: dict[str, Any] | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """`load_pretrained`, and the tokenizer.

    Raises:
        InputError: as there, and if there is no tokenizer.
    """
    what = f"model: expected {kind}, got {name}"
    if names_folder(name):
        check_model_folder(Path(name))
    model = load_pretrained(name, auto_class, kind, head=head)
    with input_errors(what):
        return model, AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def load_pretrained(name: str, auto_class: Any, kind: str, *, head: dict[str, Any] | None = None) -> PreTrainedModel:
    """Model by one of transformers' Auto classes, in evaluation mode, from a folder or the hub.

    Args:
        name: Folder or hub id.
        auto_class: One of transformers' Auto classes.
        kind: What it makes, for errors.
        head: Fields of the configuration for another head; one that is not there, does not fit or has other
            `id2label` starts anew.

    Raises:
        InputError: if the folder does not exist or is half-written, or the model is not of that kind.
    """
    what = f"model: expected {kind}, got {name}"
    weights = _check_weights(Path(name)) if names_folder(name) else None
    config = read_config(name, what)
    if weights is not None:
        check_size(weights, lambda: auto_class.from_config(config, trust_remote_code=False), what)
    with input_errors(what):
        # Models with a head save no pooler, and nobody here asks for its output; ours can do without one.
        bare = auto_class is AutoModel and config.model_type == "linformer"
        arguments = {"add_pooling_layer": False} if bare else head or {}
        # Sizes that do not fit are refused below, in one line instead of a report and an exception.
        model, loading = auto_class.from_pretrained(
            name,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            trust_remote_code=False,
            **arguments,
        )
    if head is not None and config.id2label != head["id2label"]:
        _start_head_anew(model, auto_class)
    absent = sorted(loading["missing_keys"]) + sorted(key for key, *_ in loading["mismatched_keys"])
    setattr(model, _RANDOM, frozenset(absent))
    if head is not None:
        prefix = f"{model.base_model_prefix}."
        absent = [key for key in absent if key.startswith(prefix) and not key.startswith(f"{prefix}pooler.")]
    elif auto_class is AutoModel:
        absent = [key for key in absent if not key.startswith("pooler.")]
    # Heads of other tasks are left over as a matter of course, and of other models more than that.
    encoder = re.compile(rf"({model.base_model_prefix}\.)?(encoder|embeddings)\.")
    surplus = (
        sorted(filter(encoder.match, loading["unexpected_keys"])) if model.config.model_type == "linformer" else []
    )
    for keys, got in ((absent, "none for"), (surplus, "no place for")):
        if keys:
            more = f" and {len(keys) - 1} others" if len(keys) > 1 else ""
            raise InputError(f"model: expected weights that fit its config.json in {name}, got {got} {keys[0]}{more}")
    return model.eval()


def random_weights(model: PreTrainedModel) -> set[str]:
    """Weights of the base model, by their names there, that were not in its files and so are random, as new poolers."""
    return {name.removeprefix(f"{model.base_model_prefix}.") for name in getattr(model, _RANDOM)}


def auto_class_of(name: str, kind: str) -> Any:
    """The Auto class of an encoder with the head that its configuration names, or of a bare one.

    Args:
        name: Folder or hub id.
        kind: What it is to be, for errors.

    Raises:
        InputError: as `load_model`.
    """
    if names_folder(name):
        _check_weights(Path(name))
    architecture = (read_config(name, f"model: expected {kind}, got {name}").architectures or ["Model"])[0]
    auto_class = next((auto_class for end, auto_class in _KINDS.items() if architecture.endswith(end)), None)
    if auto_class is None:
        raise InputError(f"model: expected {kind}, got {architecture} in {name}")
    return auto_class


def _start_head_anew(model: PreTrainedModel, auto_class: Any) -> None:
    fresh = auto_class.from_config(model.config)
    for name, module in model.named_children():
        if name != model.base_model_prefix:
            module.load_state_dict(getattr(fresh, name).state_dict())


def load_classifier(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Classifier of sequences, in evaluation mode, and tokenizer, from a folder or the hub.

    Raises:
        InputError: if the folder does not exist or is half-written, or holds no classifier.
    """
    return load_model(name, AutoModelForSequenceClassification, "a classifier (`linformer finetune` makes one)")


def resize(model: PreTrainedModel, resize_to: int | None, resize_mode: ResizeMode) -> None:
    """Change the longest sequence of a model of this package, in place; None leaves it.

    Raises:
        InputError: for another model, or a length that it cannot have.
    """
    if resize_to is None:
        return
    if not hasattr(model, "resize_sequence_length"):
        raise InputError(f"resize_to: expected none for a model of type {model.config.model_type}, got {resize_to}")
    with renamed("seq_len", "resize_to"), renamed("mode", "resize_mode"):
        model.resize_sequence_length(resize_to, mode=resize_mode)


def input_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> int:
    """Longest input in tokens that is made for a model.

    Args:
        model: Its positions are the limit (`longest_input`); where nothing limits it, what the tokenizer says.
        tokenizer: Its `model_max_length` is the default.
        max_length: What was asked for, if anything.

    Raises:
        InputError: for more than the limit.
    """
    if not isinstance(tokenizer.model_max_length, int):
        raise InputError(f"tokenizer: expected a whole number as model_max_length, got {tokenizer.model_max_length!r}")
    longest = longest_input(model) or tokenizer.model_max_length
    if max_length is None:
        return min(longest, tokenizer.model_max_length)
    if max_length > longest:
        raise InputError(f"max_length: expected at most {longest}, which the model takes, got {max_length}")
    return max_length


def check_model_folder(folder: Path) -> Weights:
    """Refuse a folder that is no whole model with a tokenizer before any library looks at it.

    Raises:
        InputError: that names the file that is missing or broken.
    """
    weights = _check_weights(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(f"model: expected a tokenizer (tokenizer.json) in {folder}, got none")
    return weights


def _check_weights(folder: Path) -> Weights:
    if not folder.is_dir():
        raise InputError(f"model: expected a folder, got {folder}, which does not exist")
    weights = check_pretrained_folder(folder, "model")
    # Its configuration may have been edited by hand; weights may not have changed by themselves.
    if (folder / MANIFEST).exists() and (found := damage(folder, only="*.safetensors")):
        raise InputError(f"{found}; if that was meant, remove {folder / MANIFEST}")
    return weights


def fingerprint(model: nn.Module, *, without: Collection[str] = ()) -> str:
    """Hexadecimal hash of all weights but those of some names."""
    content = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if name in without:
            continue
        content.update(f"{name} {tuple(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().float().contiguous().numpy().data)
    return content.hexdigest()
