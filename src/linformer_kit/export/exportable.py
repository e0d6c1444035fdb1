"""A model in the form for export: named inputs, and the outputs of its head.

Axes: batch, seq_len, and the outputs of the head for each token or each text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from linformer_kit.errors import InputError
from linformer_kit.interop.checkpoints.pretrained import read_config
from linformer_kit.interop.loading import auto_class_of, input_length, load_model

_NO_LIMIT = 1 << 31  # tokenizers without a limit have about 10^30

Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], list[np.ndarray]]  # inputs by name to outputs in their order


class Head(NamedTuple):
    """A kind of model: its Auto class, its name in messages, its outputs, and whether there is one for each token."""

    auto_class: Any
    kind: str
    outputs: tuple[str, ...]
    by_token: bool = True


MASKED_LM = Head(AutoModelForMaskedLM, "a masked language model", ("logits",))
CLASSIFIER = Head(AutoModelForSequenceClassification, "a classifier", ("logits",), by_token=False)
TOKEN_CLASSIFIER = Head(AutoModelForTokenClassification, "a classifier of tokens", ("logits",))
QUESTION_ANSWERING = Head(
    AutoModelForQuestionAnswering, "a model that answers questions", ("start_logits", "end_logits")
)
# The pooler's output is not exported: if the weights have no pooler, transformers initialises it at random.
ENCODER = Head(AutoModel, "an encoder", ("last_hidden_state",))
HEADS = {head.auto_class: head for head in (MASKED_LM, CLASSIFIER, TOKEN_CLASSIFIER, QUESTION_ANSWERING, ENCODER)}


class Exportable(nn.Module):
    """A model in evaluation mode that takes its inputs in a fixed order and returns a tuple.

    Args:
        model: Any encoder.
        head: The head, which names the outputs.
        input_names: Names of the inputs, in order.
    """

    def __init__(self, model: PreTrainedModel, head: Head, input_names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.head, self.input_names = model.eval(), head, input_names

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


class Source(NamedTuple):
    """Source of an export: a model, its tokenizer, and its longest input in tokens."""

    exportable: Exportable
    tokenizer: PreTrainedTokenizerBase
    limit: int


class Made(NamedTuple):
    """Result of an export: functions that run it and sizes in bytes, by name, the written form last; its agreement."""

    runs: dict[str, Run]
    size: dict[str, int]
    agreement: dict[str, Any]


def load(name: str) -> Source:
    """Load the model of a folder or hub id in float32, with the head that its configuration names.

    Raises:
        InputError: if it is not a complete encoder, or already quantised.
    """
    config = read_config(name, f"model: expected an encoder, got {name}")
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(f"model: expected weights in floating point, got quantised ones in {name}")
    kinds = ", ".join(head.kind for head in HEADS.values())
    head = HEADS.get(auto_class_of(name, kinds))
    if head is None:
        raise InputError(f"model: expected {kinds}, got {config.architectures[0]} in {name}")
    model, tokenizer = load_model(name, head.auto_class, head.kind)
    limit = input_length(model, tokenizer, None)
    if limit >= _NO_LIMIT:
        raise InputError(
            f"model: expected a longest input in tokens (model_max_length of the tokenizer), got none in {name}"
        )
    tokenizer.model_max_length = limit
    names = ["input_ids", "attention_mask"]
    if "token_type_ids" in tokenizer.model_input_names and getattr(config, "type_vocab_size", None):
        names.append("token_type_ids")
    return Source(Exportable(model.float(), head, tuple(names)), tokenizer, limit)
