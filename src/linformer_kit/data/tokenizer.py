"""Tokenizers: a byte-level BPE trained on the corpus, or any existing fast tokenizer with a mask token."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tqdm import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from linformer_kit.errors import InputError, machine_failure

# `lstrip` (the mask includes the space before it) only works if the trainer gets this `AddedToken`.
_MASK = AddedToken("<mask>", lstrip=True, special=True)
# In the order of RoBERTa's ids.
_SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", _MASK]
_CONFIGURATION = "tokenizer_config.json"
# Entries about where a tokenizer was loaded from, and about lengths; they do not change its ids.
_NO_RULES = ("is_local", "local_files_only", "name_or_path", "model_max_length")
_SMALLEST_VOCABULARY = len(_SPECIAL_TOKENS) + 256  # every byte is a token, so no text is unknown


def train_tokenizer(documents: Iterable[str], *, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with RoBERTa's special tokens and their ids.

    Args:
        documents: Training text.
        vocab_size: Maximum size of the vocabulary; a small corpus gives a smaller one, see `len` of the result.
        max_length: Maximum input length of the model, in tokens.

    Returns:
        A tokenizer that `AutoTokenizer` loads after `save_pretrained`. Decoding restores any text exactly.

    Raises:
        InputError: `vocab_size` is too small for the special tokens and all bytes.
    """
    if vocab_size < _SMALLEST_VOCABULARY:
        raise InputError(
            f"vocab_size: expected at least {_SMALLEST_VOCABULARY} ({len(_SPECIAL_TOKENS)} special tokens and "
            f"256 bytes), got {vocab_size}"
        )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(tqdm(documents, desc="Training tokenizer", unit=" documents", delay=2), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token=_MASK,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
    )


def load_tokenizer(name_or_path: str, *, max_length: int) -> PreTrainedTokenizerFast:
    """Load an existing tokenizer.

    Args:
        name_or_path: Folder, or id on the Hugging Face hub.
        max_length: Maximum input length of the model, in tokens.

    Returns:
        The tokenizer, without token types among its outputs.

    Raises:
        InputError: It does not exist, is not a fast one, or has no mask, padding, start or end token.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
    except Exception as error:  # for damaged files the libraries raise errors of any type
        if machine_failure(error) is not None:
            raise
        if Path(name_or_path).exists():
            expected = "a folder with tokenizer.json, as save_pretrained writes it"
        else:
            expected = "a folder or an id on the Hugging Face hub, and neither was found"
        raise InputError(f"tokenizer {name_or_path}: expected {expected}") from error
    if not tokenizer.is_fast:
        kind = type(tokenizer).__name__
        raise InputError(f"tokenizer {name_or_path}: expected a fast one (tokenizer.json), got {kind}")
    needed = {
        "mask": tokenizer.mask_token,
        "padding": tokenizer.pad_token,
        "start (bos or cls)": tokenizer.bos_token or tokenizer.cls_token,
        "end (eos or sep)": tokenizer.eos_token or tokenizer.sep_token,
    }
    missing = " and no ".join(role for role, token in needed.items() if token is None)
    if missing:
        raise InputError(f"tokenizer {name_or_path}: expected tokens for {', '.join(needed)}; got no {missing}")
    if "token_type_ids" in tokenizer.model_input_names:
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        # As an argument, since `save_pretrained` keeps those.
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False, model_input_names=names)
    tokenizer.model_max_length = max_length
    return tokenizer


def start_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id that starts a sequence."""
    return tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def end_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id that ends a document."""
    return tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the number of token ids from 0 to the largest, which may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of everything that the ids of a tokenizer depend on; equal tokenizers have equal hashes."""
    if tokenizer.is_fast:
        rules = json.loads(tokenizer.backend_tokenizer.to_str())
        # Arguments of the latest call, not properties of the tokenizer.
        del rules["truncation"], rules["padding"]
    else:
        rules = _saved(tokenizer)
    identity = [rules, start_token_id(tokenizer), end_token_id(tokenizer)]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _saved(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Identity of a tokenizer without tokenizer.json: its class, settings and a hash of each file."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    settings = json.loads(files.pop(_CONFIGURATION))
    settings = {name: value for name, value in settings.items() if name not in _NO_RULES}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return [type(tokenizer).__name__, settings, hashes]
