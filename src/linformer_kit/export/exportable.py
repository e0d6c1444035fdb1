"""A model in the form for export (named inputs, the outputs of its head), and how an exported one is compared with it.

Axes: batch, seq_len, and the outputs of the head for each token or each text.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from linformer_cli.errors import InputError
from linformer_kit.files.tokenizer import NO_LIMIT
from linformer_kit.inference.embed import load_embedder
from linformer_kit.internals import attention_implementation, bidirectional_mask_function
from linformer_kit.interop.checkpoints import module_names, read_config
from linformer_kit.interop.loading import auto_class_of, input_length, load_model
from linformer_kit.linearized.windows import IMPLEMENTATION, WindowMask, window_attention, window_mask
from linformer_kit.operator.conditions import is_exporting

# Largest difference allowed between ONNX Runtime and PyTorch, as a multiple of PyTorch's float32 error (from float64).
_TOLERANCE = 8
_LONGEST_IN_FLOAT64 = 512  # tokens; of longer inputs only the longest runs in float64
_SEVERAL_ROWS_BELOW = 1024  # tokens; inputs of this length or longer have one row

TOKENIZER = "tokenizer.json"
_TEXTS = [("A text: what was it?", None), ("", None), ("A text.", "And another one, longer.")]

Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], list[np.ndarray]]  # inputs by name to outputs in their order
Padding = Literal["none", "right", "left"]


class Head(NamedTuple):
    """A kind of model: its Auto class, its name in messages, its outputs, and which are of texts, not of tokens."""

    auto_class: Any
    kind: str
    outputs: tuple[str, ...]
    of_texts: tuple[str, ...] = ()


CLASSIFIER = Head(AutoModelForSequenceClassification, "a classifier", ("logits",), of_texts=("logits",))
HEADS = (
    Head(AutoModelForMaskedLM, "a masked language model", ("logits",)),
    CLASSIFIER,
    Head(AutoModelForTokenClassification, "a classifier of tokens", ("logits",)),
    Head(AutoModelForQuestionAnswering, "a model that answers questions", ("start_logits", "end_logits")),
    # The pooler's output is not exported: if the weights have no pooler, transformers initialises it at random.
    Head(AutoModel, "an encoder", ("last_hidden_state",)),
)
_EMBEDDING = "sentence_embedding"
EMBEDDER = Head(AutoModel, "a sentence embedder", ("last_hidden_state", _EMBEDDING), of_texts=(_EMBEDDING,))
# Modules of sentence-transformers that can follow the encoder in a file: tensors to tensors, of any length.
_AFTER_ENCODER = ("Pooling", "Normalize", "Dense", "LayerNorm", "Dropout")


def _mask(**arguments: Any) -> WindowMask | Tensor | None:
    """The mask of exact windows; in an exported program, that of full attention has one row for all queries."""
    padding = arguments.get("attention_mask")
    if not is_exporting() or padding is None or arguments["mask_function"] is not bidirectional_mask_function:
        return window_mask(**arguments)
    return padding[:, None, None].bool()


_EXPORTED = "exported_windows"
AttentionInterface.register(_EXPORTED, window_attention)
AttentionMaskInterface.register(_EXPORTED, _mask)


class Exportable(nn.Module):
    """A model in evaluation mode that takes its inputs in a fixed order and returns a tuple.

    `input_names` are the inputs, in order; the head names the outputs; `limit` is the longest input in tokens;
    `sentences` is the whole embedder, if the model is the encoder of one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        head: Head,
        sentences: SentenceTransformer | None = None,
    ) -> None:
        super().__init__()
        self.model, self.head, self.sentences = model.eval(), head, sentences
        if attention_implementation(model) in ("sdpa", IMPLEMENTATION):
            model.set_attn_implementation(_EXPORTED)
        self.tokenizer, self.limit = tokenizer, tokenizer.model_max_length
        has_types = "token_type_ids" in tokenizer.model_input_names and getattr(model.config, "type_vocab_size", None)
        self.input_names = ("input_ids", "attention_mask", *["token_type_ids"] * bool(has_types))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if self.sentences is None:
            outputs = self.model(**inputs, return_dict=True)
            return tuple(outputs[name] for name in self.head.outputs)
        encoder, *modules = self.sentences
        features = encoder(inputs)
        hidden = features["token_embeddings"]
        for module in modules:
            features = module(features)
        return hidden, features[_EMBEDDING][:, : self.sentences.truncate_dim]

    @property
    def prompt(self) -> str:
        """What precedes a text unless another prompt is named, as in `SentenceTransformer.encode`."""
        if self.sentences is None:
            return ""
        return self.sentences.prompts.get(self.sentences.default_prompt_name or "") or ""

    @property
    def size(self) -> int:
        """Bytes of the weights; tied weights count once."""
        return sum(tensor.nbytes for tensor in {*self.parameters(), *self.buffers()})

    @torch.no_grad()
    def run(self, inputs: Arrays) -> list[np.ndarray]:
        """Outputs as arrays, for inputs as arrays."""
        outputs = self(**{name: torch.from_numpy(inputs[name]) for name in self.input_names})
        return [output.numpy() for output in outputs]


def load(name: str) -> Exportable:
    """Load the model of a folder or hub id in float32, with the head that its configuration names.

    Raises:
        InputError: if it is not a complete encoder, is already quantised, or has modules that a file cannot have.
    """
    first, *others = module_names(name) or ["Transformer"]
    _check_modules([first], ("Transformer",), name)
    config = read_config(name, f"model: expected an encoder, got {name}")
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(f"model: expected weights in floating point, got quantised ones in {name}")
    kinds = ", ".join(head.kind for head in HEADS)
    auto_class = auto_class_of(config, name, kinds)
    head = next((head for head in HEADS if head.auto_class is auto_class), None)
    if head is None:
        raise InputError(f"model: expected {kinds}, got {config.architectures[0]} in {name}")
    if others and auto_class in (AutoModel, AutoModelForMaskedLM):  # sentence-transformers drops the latter's head
        _check_modules(others, _AFTER_ENCODER, name)
        source = _load_sentences(name)
    else:
        model, tokenizer, *_ = load_model(name, auto_class, head.kind, config=config)
        tokenizer.model_max_length = input_length(model, tokenizer, None)
        source = Exportable(model, tokenizer, head)
    if source.limit >= NO_LIMIT:
        expected = "a longest input in tokens (model_max_length of the tokenizer)"
        raise InputError(f"model: expected {expected}, got none in {name}")
    return source.float()


def _load_sentences(name: str) -> Exportable:
    """The model of an embedder, as its files say."""
    embedder = load_embedder(name, batch_size=1, device="cpu")
    sentences, tokenizer = embedder.sentences, embedder.tokenizer
    leaves_out_prompt = any(not getattr(module, "include_prompt", True) for module in sentences)
    if leaves_out_prompt and any(sentences.prompts.values()):
        raise InputError(f"model: expected Pooling of all tokens, got include_prompt false, and prompts, in {name}")
    if (output := sentences[0].module_output_name) != "token_embeddings":
        raise InputError(f"model: expected a Transformer that outputs token_embeddings, got {output} in {name}")
    tokenizer.model_max_length = embedder.limit
    return Exportable(embedder.model, tokenizer, EMBEDDER, sentences)


def _check_modules(names: list[str], allowed: tuple[str, ...], name: str) -> None:
    """Reject modules of sentence-transformers whose class is not allowed in their place."""
    for module in names:
        if module not in allowed:
            raise InputError(f"model: expected {' or '.join(allowed)} in modules.json of {name}, got {module}")


def check_tokenizer(source: Exportable, folder: Path) -> None:
    """Compare the `tokenizers` library, which reads the file of a folder, with the tokenizer beside PyTorch.

    Raises:
        InputError: if one of a few texts, short, empty and too long, alone or in pairs, has other tokens.
    """
    if not source.tokenizer.is_fast:
        return
    written = Tokenizer.from_file(str(folder / TOKENIZER))
    for text, pair in [*_TEXTS, (" ".join([_TEXTS[0][0]] * source.limit), None)]:
        inputs = source.tokenizer(text, pair, truncation=True, return_attention_mask=False)
        encoded = written.encode(text, pair)
        found = {"input_ids": encoded.ids, "token_type_ids": encoded.type_ids}
        if any(found[name] != inputs[name] for name in found.keys() & inputs.keys()):
            expected = f"a tokenizer whose {TOKENIZER} makes the same tokens without transformers"
            raise InputError(f"model: expected {expected}, got others of {text!r:.40}")


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the exporters' warnings, which are about missing optional libraries and their own internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class Case(NamedTuple):
    """The shape of one input."""

    rows: int
    length: int
    padding: Padding = "none"

    def __str__(self) -> str:
        padding = "" if self.padding == "none" else f", padded on the {self.padding}"
        return f"{self.rows} x {self.length} tokens{padding}"


def cases(limit: int) -> list[Case]:
    """Shapes from one token to `limit`, without padding and with padding on both sides."""
    lengths = sorted({1, 2, max(1, limit // 8), max(1, limit // 2), limit - 1, limit})
    paddings: tuple[tuple[int, Padding], ...] = ((1, "none"), (3, "right"), (2, "left"))
    return [
        Case(rows if length < _SEVERAL_ROWS_BELOW else 1, length, padding if length > 1 else "none")
        for length in lengths
        for rows, padding in paddings
    ]


def example(source: Exportable) -> dict[str, Tensor]:
    """Inputs for tracing; no size of them may reach the program."""
    inputs = random_inputs(source, Case(2, min(7, source.limit), "left"))
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


def random_inputs(source: Exportable, case: Case) -> Arrays:
    """Random tokens with padding of at most half of each row."""
    rows, length, padding = case
    generator = np.random.default_rng([0, rows, length])
    padded = generator.integers(1, max(1, length // 2) + 1, size=(rows, 1)) * (padding != "none")
    mask = np.arange(length)[None] >= padded
    mask = mask[:, ::-1] if padding == "right" else mask
    pad, config = source.tokenizer.pad_token_id or 0, source.model.config
    vocabulary = np.setdiff1d(np.arange(config.vocab_size), [pad])
    inputs = {"input_ids": np.where(mask, generator.choice(vocabulary, size=mask.shape), pad), "attention_mask": mask}
    if "token_type_ids" in source.input_names:
        inputs["token_type_ids"] = generator.integers(config.type_vocab_size, size=mask.shape)
    return {name: inputs[name].astype(np.int64) for name in source.input_names}


def differences(source: Exportable, run: Run, shapes: list[Case]) -> dict[Case, float]:
    """The largest difference of an exported model from PyTorch for inputs of some shapes, without padded positions.

    NaN if an output is NaN.
    """
    largest = {}
    for case in tqdm(shapes, desc="compare with PyTorch", unit=" shapes", dynamic_ncols=True, delay=2):
        inputs = random_inputs(source, case)
        real = inputs["attention_mask"] == 1
        places = [... if name in source.head.of_texts else real for name in source.head.outputs]
        outputs = zip(run(inputs), source.run(inputs), places, strict=True)
        of_outputs = [np.abs(ours[at].astype(np.float64) - theirs[at]).max() for ours, theirs, at in outputs]
        largest[case] = float(np.max(of_outputs))  # Python's `max` can lose a NaN
    return largest


def check_agreement(source: Exportable, run: Run) -> dict[str, Any]:
    """Compare an exported model with PyTorch at all `cases`.

    Returns:
        The `shapes` compared, `largest_difference`, `float32_error` (of PyTorch, from float64) and `tolerance`.

    Raises:
        InputError: if a difference is above the tolerance.
    """
    shapes, exact = cases(source.limit), copy.deepcopy(source).double()
    in_float64 = [case for case in shapes if case.length <= _LONGEST_IN_FLOAT64]
    float32_error = max(differences(source, exact.run, [*in_float64, Case(1, source.limit)]).values())
    tolerance = _TOLERANCE * float32_error
    largest = differences(source, run, shapes)
    worst = max(largest, key=lambda case: np.nan_to_num(largest[case], nan=np.inf))
    if not largest[worst] <= tolerance:
        expected = f"the exported model within {tolerance:.1e} of PyTorch"
        raise InputError(f"model: expected {expected}, got {largest[worst]:.1e} for {worst}")
    return {
        "shapes": [str(case) for case in largest],
        "largest_difference": largest[worst],
        "float32_error": float32_error,
        "tolerance": tolerance,
    }
