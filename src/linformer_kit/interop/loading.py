"""Load models and tokenizers from folders and the hub; errors are one line."""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from linformer_cli.errors import InputError, input_errors
from linformer_cli.settings import is_local_path
from linformer_kit.files.manifest import MANIFEST, damage, fingerprint
from linformer_kit.internals import chosen_fields
from linformer_kit.interop.checkpoints import check_size, optional_file, read_config
from linformer_kit.linearized.adapter import weights_hash
from linformer_kit.linearized.products import use_fast_products
from linformer_kit.linearized.windows import use_exact_windows
from linformer_kit.models.base import longest_input

# Every tokenizer read here keeps its vocabulary in one of these files.
_TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json"),
    *("sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
)

# Ends of the class names of encoders, and of their Auto classes after `AutoModel`.
_HEADS = (
    "ForMaskedLM",
    "ForPreTraining",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForImageClassification",
)

# Tensors in files of earlier versions that models compute, and the token of masked images, which only pretraining uses.
_UNUSED = re.compile(r"\b(position_ids|token_type_ids|inv_freq|masked_bias|mask_token)$")

# Fields of a configuration that change no output.
_NO_SETTINGS = {"_name_or_path", "architectures", "dtype", "transformers_version"}

logger = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """A model, its tokenizer, and what its files and the model do not have in common."""

    model: Any
    tokenizer: Any  # None if only a model was loaded
    random: frozenset[str]  # names of the model's weights that were not in the files
    left_out: list[str]  # names of the files' weights that have no place in the model


def load_model(
    name: str,
    auto_class: Any,
    kind: str,
    *,
    head: dict[str, Any] | None = None,
    same_classes: bool = False,
    config: PreTrainedConfig | None = None,
    to_run: bool = True,
    on_meta: bool = False,
) -> Loaded:
    """Load a model by one of transformers' Auto classes, in evaluation mode, from a folder or the hub.

    Args:
        name: Folder or hub id.
        auto_class: One of transformers' Auto classes; None: that of the head that the configuration names.
        kind: The kind of model that it loads, for errors.
        head: Fields of the configuration for a head with these classes. Weights of the head that the files lack are
            initialised at random, and so are those with a row for each class, unless the files have `same_classes`.
        same_classes: Whether the head of the files has the classes of `head`, in the same order.
        config: The configuration, if `read_config` has read it already, with which it checks the folder.
        to_run: Whether to load its tokenizer too, which makes the inputs that the model reads. Layers with a sliding
            window then run as exact windows, and products as is fastest here, with the same outputs.
        on_meta: Load no values of weights, only check the files.
    """
    what = f"model: expected {kind}, got {name}"
    config = config or read_config(name, what)
    auto_class = auto_class or auto_class_of(config, name, kind)
    with input_errors(what):
        config.update(head or {})
    if is_local_path(name):
        manifest = Path(name) / MANIFEST
        # The configuration may have been edited by hand; changed weights mean damage.
        if manifest.exists() and (wrong := damage(manifest.parent, only="*.safetensors")):
            raise InputError(f"{wrong}; if the weights were changed on purpose, remove {manifest}")
        check_size(
            manifest.parent, lambda: auto_class.from_config(copy.deepcopy(config), trust_remote_code=False), what
        )
    with input_errors(what):
        # Sizes that do not fit are rejected below with a message of one line.
        model, loading = auto_class.from_pretrained(
            name,
            config=config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            trust_remote_code=False,
            device_map="meta" if on_meta else None,
        )
    absent = {*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])}
    if head is not None and not same_classes:
        absent |= _start_classes_anew(model, auto_class, absent)
    left_out = [key for key in sorted(loading["unexpected_keys"]) if not _UNUSED.search(key)]
    loaded = Loaded(model.eval(), None, frozenset(absent), left_out)
    prefix = f"{model.base_model_prefix}."
    if head is not None:
        absent = {key for key in absent if key.startswith(prefix)}
    if head is not None or auto_class is AutoModel:
        absent = {key for key in absent if not key.removeprefix(prefix).startswith("pooler.")}
    for keys, got in ((sorted(absent), "none for"), (_lost_weights(loaded), "unexpected")):
        if keys:
            more = f" and {len(keys) - 1} others" if len(keys) > 1 else ""
            raise InputError(f"model: expected weights that fit its config.json in {name}, got {got} {keys[0]}{more}")
    if not on_meta:
        check_finite_weights(model, name)
    return _ready_to_run(loaded, name, what) if to_run else loaded


def check_finite_weights(model: nn.Module, name: str) -> None:
    """Reject a model of a folder or hub id that has NaN or infinite weights."""
    for key, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise InputError(f"model: expected finite weights in {name}, got NaN or infinite ones in {key}")


def _lost_weights(loaded: Loaded) -> list[str]:
    """Weights of a file that belong to the encoder and have no place in it; heads and poolers do not count.

    transformers drops them: a BERT with `position_embedding_type` relative_key would be one without positions.
    """
    prefix = loaded.model.base_model_prefix
    parts = {name.partition(".")[0] for name in loaded.model.base_model.state_dict()} | {prefix}
    encoder_names = [name for name in loaded.left_out if name.partition(".")[0] in parts]
    return [name for name in encoder_names if not name.removeprefix(f"{prefix}.").startswith(("pooler.", "decoder."))]


def _ready_to_run(loaded: Loaded, name: str, what: str) -> Loaded:
    """A loaded model with exact windows, fast products, and its tokenizer, whose tokens the model must know."""
    model = loaded.model
    use_exact_windows(model)
    use_fast_products(model)
    if is_local_path(name) and not has_tokenizer(name):
        raise InputError(f"model: expected a tokenizer (tokenizer.json) in {name}, got none")
    with input_errors(what):
        tokenizer = tokenizer_for(model, name)
        config = model.config.get_text_config()
    _check_vocabulary(tokenizer, getattr(config, "vocab_size", None))
    if getattr(config, "pad_token_id", None) is None:  # some classifiers need it for batches
        config.pad_token_id = tokenizer.pad_token_id
    return loaded._replace(tokenizer=tokenizer)


def has_tokenizer(name: str) -> bool:
    """Whether a folder or hub id has the files of a tokenizer."""
    return any(optional_file(name, file) for file in _TOKENIZER_FILES)


def tokenizer_for(model: PreTrainedModel, name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub id, which makes the inputs that the model reads, also when saved again."""
    tokenizer = AutoTokenizer.from_pretrained(name, config=model.config, trust_remote_code=False)
    accepted = inspect.signature(model.forward).parameters
    names = [each for each in tokenizer.model_input_names if each in accepted]
    if getattr(model.config, "type_vocab_size", None) in (0, 1) and "token_type_ids" in names:
        names.remove("token_type_ids")
    if "attention_mask" in accepted and "attention_mask" not in names:
        names.append("attention_mask")
    # Text is generated after the last column, and classifiers of XLNet read it. Other encoders count absolute positions
    # from the first column, or their classifiers read it.
    reads_last = model.can_generate() or getattr(model.config, "summary_type", None) == "last"
    side = tokenizer.padding_side if reads_last else "right"
    options = {"model_input_names": names, "padding_side": side}
    if all(getattr(tokenizer, option) == value for option, value in options.items()):
        return tokenizer
    # As arguments, since `save_pretrained` keeps those.
    return AutoTokenizer.from_pretrained(name, config=model.config, trust_remote_code=False, **options)


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int | None) -> None:
    """Reject a tokenizer that makes tokens without an embedding; added tokens count only if it inserts them itself."""
    if vocab_size is None:
        return
    inserted = {getattr(tokenizer, f"{role}_token") for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
    unused = tokenizer.get_added_vocab().keys() - inserted
    largest = max([number for token, number in tokenizer.get_vocab().items() if token not in unused], default=-1)
    if largest >= vocab_size:
        expected = f"a tokenizer of at most {vocab_size:,} tokens (the model's vocabulary)"
        raise InputError(f"model: expected {expected}, got {largest + 1:,}")


def auto_class_of(config: PreTrainedConfig, name: str, kind: str) -> Any:
    """The Auto class of an encoder with the head that its configuration names, or of an encoder without head.

    Warns if the configuration names no class: it is taken for an encoder without head.

    Args:
        config: The configuration.
        name: Folder or hub id that it is from.
        kind: The kind of model expected, for errors.
    """
    architectures = config.architectures
    if not architectures:
        logger.warning("%s: config.json names no architectures: read as an encoder without head, if it has one", name)
        return AutoModel
    if not isinstance(architectures, list) or not isinstance(architectures[0], str):
        raise InputError(f"model: expected a list of names as architectures in {name}, got {architectures!r}")
    architecture = architectures[0]
    ending = re.search(rf"({'|'.join(_HEADS)}|(?<!LMHead)Model)$", architecture)
    if ending is None:
        raise InputError(f"model: expected {kind}, got {architecture} in {name}")
    return getattr(transformers, f"AutoModel{ending[1].removeprefix('Model')}")


def _start_classes_anew(model: PreTrainedModel, auto_class: Any, known: Collection[str]) -> set[str]:
    """Initialise the weights that have a row for each class, in place, except those that are `known` to be new.

    Returns:
        Their names.
    """
    config = copy.deepcopy(model.config)
    config.num_labels += 1  # these weights have another shape then
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in auto_class.from_config(config).state_dict().items()}
    loaded = {name: tensor for name, tensor in model.state_dict().items() if name not in known}
    names = {name for name, tensor in loaded.items() if tensor.shape != shapes[name]}
    if names:
        new = auto_class.from_config(model.config).state_dict()
        for name in names:
            loaded[name].copy_(new[name])
    return names


def input_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> int:
    """Longest input in tokens to encode for a model.

    Args:
        model: Its positions are the limit (`longest_input`); without positions, the tokenizer's `model_max_length` is.
        tokenizer: Its `model_max_length` is the default.
        max_length: The requested length, if any.
    """
    if not isinstance(tokenizer.model_max_length, int):
        raise InputError(f"tokenizer: expected a whole number as model_max_length, got {tokenizer.model_max_length!r}")
    longest = longest_input(model) or tokenizer.model_max_length
    if max_length is None:
        return min(longest, tokenizer.model_max_length)
    if max_length > longest:
        raise InputError(f"max_length: expected at most {longest} (the model's limit), got {max_length}")
    return max_length


def renamed_weights(weights: Mapping[str, Tensor], names: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Weights under other names: of each pair the first string is replaced by the second, one pair after the other."""
    result = {}
    for name, tensor in weights.items():
        for theirs, ours in names:
            name = name.replace(theirs, ours)
        result[name] = tensor
    return result


def model_fingerprint(model: nn.Module, *, without: Collection[str] = ()) -> str:
    """Hexadecimal hash of the configuration, if there is one, and of all weights except those named in `without`."""
    config = next((each.config for each in model.modules() if isinstance(each, PreTrainedModel)), None)
    fields = {} if config is None else chosen_fields(config)
    fields = {name: fields[name] for name in sorted(fields.keys() - _NO_SETTINGS)}
    weights = ((name, tensor.float()) for name, tensor in model.state_dict().items() if name not in without)
    return fingerprint(fields, weights_hash(weights))
