"""The measured encoders, with random weights, and one run of each: a forward pass or a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import RobertaConfig, RobertaModel

from linformer_kit.experiments.prepare import torch_dtype
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.modeling import LinformerModel
from linformer_kit.settings.bench import BenchSettings, Mode

VOCAB_SIZE = 1000  # small, as the time of the embedding lookup does not depend on it
_FIRST_ORDINARY = 5  # below are special tokens; RobertaModel derives positions from tokens that are not padding

Kind = Literal["linformer", "eager", "full", "roberta"]


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Description of an encoder to build.

    Attributes:
        kind: `linformer` with layerwise sharing, or one of the Transformers to compare with.
        seq_len: n, the maximum sequence length, which is also the measured one.
        layers: Number of layers.
        projected_dim: k; None for Transformers.
        vocab_size: Tokens in the vocabulary.
    """

    kind: Kind
    seq_len: int
    layers: int
    projected_dim: int | None = None
    vocab_size: int = VOCAB_SIZE

    @property
    def name(self) -> str:
        """Name, unique among the encoders of one length."""
        return self.kind if self.projected_dim is None else f"k {self.projected_dim}"


def build(encoder: Encoder, settings: BenchSettings, device: torch.device, *, mode: Mode = "forward") -> nn.Module:
    """Build the model without pooler and dropout, with weights initialised in the data type of the settings."""
    torch.manual_seed(settings.seed)
    with default_dtype(torch_dtype(settings)):
        model = KINDS[encoder.kind](encoder, settings)
    return model.to(device).train(mode == "train")


def sizes(settings: BenchSettings, *, layers: int, vocab_size: int) -> dict[str, Any]:
    """The common fields of transformers' configurations and ours."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": settings.hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": settings.num_attention_heads,
        "intermediate_size": settings.intermediate_size,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _ours(encoder: Encoder, settings: BenchSettings, **fields: Any) -> LinformerModel:
    config = LinformerConfig(
        **sizes(settings, layers=encoder.layers, vocab_size=encoder.vocab_size),
        max_position_embeddings=encoder.seq_len,
        **fields,
    )
    return LinformerModel(config, add_pooling_layer=False)


def _linformer(encoder: Encoder, settings: BenchSettings) -> LinformerModel:
    return _ours(encoder, settings, projected_dim=encoder.projected_dim, sharing="layerwise")


def _full(encoder: Encoder, settings: BenchSettings) -> LinformerModel:
    return _ours(encoder, settings, attention="full")


def _roberta(encoder: Encoder, settings: BenchSettings, implementation: str = "sdpa") -> RobertaModel:
    config = RobertaConfig(
        **sizes(settings, layers=encoder.layers, vocab_size=encoder.vocab_size),
        max_position_embeddings=encoder.seq_len + 2,
        type_vocab_size=1,
        attn_implementation=implementation,
    )
    return RobertaModel(config, add_pooling_layer=False)


KINDS: dict[Kind, Callable[[Encoder, BenchSettings], LinformerModel | RobertaModel]] = {
    "linformer": _linformer,
    "eager": partial(_roberta, implementation="eager"),
    "full": _full,
    "roberta": _roberta,
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype within the context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def random_ids(
    batch: int, seq_len: int, vocab_size: int, seed: int, device: torch.device
) -> Int[Tensor, "batch seq_len"]:
    """Random token ids, without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(_FIRST_ORDINARY, vocab_size, (batch, seq_len), generator=generator).to(device)


def runner(model: nn.Module, ids: Int[Tensor, "batch seq_len"], mode: Mode) -> Callable[[], object]:
    """A function for one run: a forward pass, or forward and backward, after which gradients are dropped."""
    if mode == "forward":
        return torch.inference_mode()(lambda: model(input_ids=ids).last_hidden_state)

    def step() -> None:
        backward(model, ids)
        model.zero_grad(set_to_none=True)

    return step


def backward(model: nn.Module, ids: Int[Tensor, "batch seq_len"]) -> None:
    """Run forward and backward with the mean square of the output as loss; gradients accumulate."""
    model(input_ids=ids).last_hidden_state.float().square().mean().backward()


def score_bytes(batch: int, seq_len: int, settings: BenchSettings, *, layers: int, mode: Mode) -> float:
    """Estimated bytes of eager attention: scores, their softmax in float32 and its cast, plus a fifth for the rest.

    In training every layer keeps them.
    """
    itemsize = torch_dtype(settings).itemsize
    one = batch * settings.num_attention_heads * seq_len**2 * (2 * itemsize + 4) * 1.2
    return one * (layers + 1 if mode == "train" else 1)
