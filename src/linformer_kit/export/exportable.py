"""A model in the form for export (named inputs, the outputs of its head), and how an exported one is compared with it.

Axes: batch, seq_len, and the outputs of the head for each token or each text.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm
from transformers import (
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
from linformer_kit.interop.checkpoints.pretrained import read_config
from linformer_kit.interop.loading import auto_class_of, input_length, load_model

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
    """A kind of model: its Auto class, its name in messages, its outputs, and whether there is one for each token."""

    auto_class: Any
    kind: str
    outputs: tuple[str, ...]
    by_token: bool = True


CLASSIFIER = Head(AutoModelForSequenceClassification, "a classifier", ("logits",), by_token=False)
HEADS = (
    Head(AutoModelForMaskedLM, "a masked language model", ("logits",)),
    CLASSIFIER,
    Head(AutoModelForTokenClassification, "a classifier of tokens", ("logits",)),
    Head(AutoModelForQuestionAnswering, "a model that answers questions", ("start_logits", "end_logits")),
    # The pooler's output is not exported: if the weights have no pooler, transformers initialises it at random.
    Head(AutoModel, "an encoder", ("last_hidden_state",)),
)


class Exportable(nn.Module):
    """A model in evaluation mode that takes its inputs in a fixed order and returns a tuple.

    `input_names` are the inputs, in order; the head names the outputs; `limit` is the longest input in tokens.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, head: Head, input_names: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.model, self.head, self.input_names = model.eval(), head, input_names
        self.tokenizer, self.limit = tokenizer, tokenizer.model_max_length

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **types)
        return tuple(outputs[name] for name in self.head.outputs)

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
        InputError: if it is not a complete encoder, or already quantised.
    """
    config = read_config(name, f"model: expected an encoder, got {name}")
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(f"model: expected weights in floating point, got quantised ones in {name}")
    kinds = ", ".join(head.kind for head in HEADS)
    auto_class = auto_class_of(config, name, kinds)
    head = next((head for head in HEADS if head.auto_class is auto_class), None)
    if head is None:
        raise InputError(f"model: expected {kinds}, got {config.architectures[0]} in {name}")
    model, tokenizer, *_ = load_model(name, head.auto_class, head.kind, config=config)
    names = ["input_ids", "attention_mask"]
    if "token_type_ids" in tokenizer.model_input_names and getattr(config, "type_vocab_size", None):
        names.append("token_type_ids")
    tokenizer.model_max_length = input_length(model, tokenizer, None)
    if tokenizer.model_max_length >= NO_LIMIT:
        expected = "a longest input in tokens (model_max_length of the tokenizer)"
        raise InputError(f"model: expected {expected}, got none in {name}")
    return Exportable(model.float(), tokenizer, head, tuple(names))


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
        real = inputs["attention_mask"] == 1 if source.head.by_token else slice(None)
        pairs = zip(run(inputs), source.run(inputs), strict=True)
        largest[case] = max(float(np.abs(ours[real].astype(np.float64) - theirs[real]).max()) for ours, theirs in pairs)
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
