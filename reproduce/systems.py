"""One layer of each kind of encoder that `table1` times, with its feed-forward part and random weights.

All have the same width, heads and feed-forward size, and exact GELU. They map hidden states to hidden states, without
embeddings. Windows, blocks, landmarks and hashes are those of the models in each system's paper.
Axes: batch, seq_len (n), embed (width), heads, head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from linformer_cli.errors import InputError
from linformer_kit.analysis.measure import Encoder, Kind, build
from linformer_kit.operator import kernels
from linformer_kit.operator.drop_in import LinformerAttention

WINDOW = 512  # tokens; Longformer's window, and the largest of ours
LANDMARKS, LANDMARK_CONVOLUTION = 64, 65
LSH_CHUNK, LSH_HASHES = 64, 1

Build = Callable[[Encoder, torch.device], nn.Module]  # sizes, n and k among them, and the device to a layer


@dataclass(frozen=True)
class System:
    """One kind of encoder layer."""

    label: str  # its name in tables
    complexity: str  # in the length n, by Table 1 of the Linformer paper, or by the paper named in the note
    note: str  # the implementation measured
    build: Build  # builds a module from `[batch, n, hidden_size]` to the same
    projected: bool = False  # whether it has a k
    package: str | None = None  # optional distribution that it comes from, if any


SYSTEMS: dict[str, System] = {}  # in the order of the tables, that of this file


def system(name: str, label: str, complexity: str, note: str, **more: Any) -> Callable[[Build], Build]:
    """Register the decorated function as the builder of a system."""

    def register(build: Build) -> Build:
        SYSTEMS[name] = System(label, complexity, note, build, **more)
        return build

    return register


class Called(nn.Module):
    """Wraps a module of a library as a map of hidden states: `call` takes the module and hidden states."""

    def __init__(self, module: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, hidden: Float[Tensor, "batch seq_len embed"]) -> Float[Tensor, "batch seq_len embed"]:
        return self.call(self.module, hidden)


class EncoderLayer(nn.Module):
    """A layer like RoBERTa's with any map that mixes tokens: it and feed-forward, each with residual and LayerNorm."""

    def __init__(self, mixer: nn.Module, sizes: Encoder) -> None:
        super().__init__()
        self.mixer = mixer
        self.mixer_norm = nn.LayerNorm(sizes.hidden_size)
        self.fc1 = nn.Linear(sizes.hidden_size, sizes.intermediate_size)
        self.fc2 = nn.Linear(sizes.intermediate_size, sizes.hidden_size)
        self.final_norm = nn.LayerNorm(sizes.hidden_size)

    def forward(self, hidden: Float[Tensor, "batch seq_len embed"]) -> Float[Tensor, "batch seq_len embed"]:
        hidden = self.mixer_norm(hidden + self.mixer(hidden))
        return self.final_norm(hidden + self.fc2(F.gelu(self.fc1(hidden))))


def first(module: nn.Module, hidden: Tensor) -> Tensor:
    """The hidden states that transformers' encoders return for hidden states alone."""
    return module(hidden)[0]


def config_fields(sizes: Encoder) -> dict[str, Any]:
    """The common fields of transformers' configurations."""
    names = ("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return {name: getattr(sizes, name) for name in names} | {"hidden_act": "gelu"} | dropout


def one_layer(kind: Kind, sizes: Encoder) -> nn.Module:
    """The encoder of a one-layer model of linformer_kit.analysis."""
    return build(replace(sizes, kind=kind), torch.device("cpu"), torch.float32).encoder  # type: ignore[return-value]


def ours(sizes: Encoder, device: torch.device, *, kind: Kind = "linformer", window: int = 0) -> nn.Module:
    """This package's layer: a Linformer with layerwise sharing, perhaps with a sliding window, or full attention."""
    encoder = one_layer(kind, sizes)
    for module in encoder.modules():
        if isinstance(module, LinformerAttention):
            module.sliding_window = window
    return Called(
        encoder,
        lambda module, hidden: (
            module(hidden, None, output_attentions=False, output_hidden_states=False).last_hidden_state
        ),
    )


@system(
    "recurrent", "Recurrent (LSTM)", "O(n)", "torch.nn.LSTM, half of the width in each direction, then feed-forward"
)
def recurrent(sizes: Encoder, device: torch.device) -> nn.Module:
    width = sizes.hidden_size
    return EncoderLayer(Called(nn.LSTM(width, width // 2, batch_first=True, bidirectional=True), first), sizes)


@system("transformer", "Transformer (RoBERTa)", "O(n²)", "transformers' RobertaModel with sdpa")
def transformer(sizes: Encoder, device: torch.device) -> nn.Module:
    return Called(one_layer("roberta", sizes), first)


system("full", "Transformer (linformer-kit)", "O(n²)", 'LinformerModel with attention="full"')(
    partial(ours, kind="full")
)


class StridedAttention(nn.Module):
    """The strided pattern of the Sparse Transformer (Child et al. 2019, section 4.2), bidirectional.

    The first half of the heads attends to tokens less than a stride away; the others to those at multiples of the
    stride. The latter sort the tokens by their remainder modulo the stride, so that attended tokens form blocks:
    FlexAttention skips blocks, not single tokens.
    """

    def __init__(self, width: int, num_heads: int, seq_len: int, device: torch.device) -> None:
        super().__init__()
        self.stride = 2 ** round(math.log2(seq_len) / 2)  # the power of two nearest to √n
        self.num_heads = num_heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        # Uncompiled, both would materialise n × n; fullgraph raises an error instead.
        self.attend = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        pattern = strided_pattern(seq_len, self.stride, num_heads)
        self.block_mask = torch.compile(create_block_mask)(pattern, None, num_heads, seq_len, seq_len, str(device))

    def forward(self, hidden: Float[Tensor, "batch seq_len embed"]) -> Float[Tensor, "batch seq_len embed"]:
        columns = hidden.shape[1] // self.stride
        query, key, value = (
            self._far_transposed(project(hidden).unflatten(-1, (self.num_heads, -1)).transpose(1, 2), columns)
            for project in (self.query, self.key, self.value)
        )
        attended = self._far_transposed(self.attend(query, key, value, block_mask=self.block_mask), self.stride)
        return self.output(attended.transpose(1, 2).flatten(2))

    def _far_transposed(
        self, heads: Float[Tensor, "batch heads seq_len head_dim"], rows: int
    ) -> Float[Tensor, "batch heads seq_len head_dim"]:
        """Reorder the tokens of the strided heads alone: write them into `rows` rows and read them by columns."""
        near, far = heads.split([self.num_heads // 2, self.num_heads - self.num_heads // 2], dim=1)
        return torch.cat([near, far.unflatten(2, (rows, -1)).transpose(2, 3).flatten(2, 3)], dim=1)


def strided_pattern(seq_len: int, stride: int, num_heads: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Which query attends to which key, for FlexAttention; the strided heads have their tokens sorted."""
    column, first_far = seq_len // stride, num_heads // 2

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(head < first_far, (query - key).abs() < stride, query // column == key // column)

    return attends


@system(
    "sparse",
    "Sparse Transformer",
    "O(n√n)",
    "strided pattern, stride √n as a power of two; half of the heads near, half strided; FlexAttention, compiled",
)
def sparse(sizes: Encoder, device: torch.device) -> nn.Module:
    attention = StridedAttention(sizes.hidden_size, sizes.num_attention_heads, sizes.seq_len, device)
    return EncoderLayer(attention, sizes)


@system(
    "reformer",
    "Reformer",
    "O(n log n)",
    f"transformers, one LSH layer; {LSH_HASHES} hash, chunks of {LSH_CHUNK}, 2n/{LSH_CHUNK} buckets; "
    "queries are keys, which saves a product",
)
def reformer(sizes: Encoder, device: torch.device) -> nn.Module:
    config = transformers.ReformerConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        num_attention_heads=sizes.num_attention_heads,
        hidden_act="gelu",
        attention_head_size=sizes.hidden_size // sizes.num_attention_heads,
        feed_forward_size=sizes.intermediate_size,
        attn_layers=["lsh"],
        lsh_attn_chunk_length=LSH_CHUNK,
        num_hashes=LSH_HASHES,
        max_position_embeddings=sizes.seq_len,
        axial_pos_embds=False,
    )
    layer = transformers.ReformerModel(config).encoder.layers[0]
    # Its residuals are reversible: two streams, which are equal before the first layer.
    return Called(layer, lambda module, hidden: module(hidden, hidden).hidden_states)


@system("longformer", "Longformer", "O(n)", f"transformers, window {WINDOW}, no global tokens (Beltagy et al. 2020)")
def longformer(sizes: Encoder, device: torch.device) -> nn.Module:
    config = transformers.LongformerConfig(**config_fields(sizes), attention_window=WINDOW)
    encoder = transformers.LongformerModel(config, add_pooling_layer=False).encoder
    # The mask has 0 on tokens with local attention.
    return Called(encoder, lambda module, hidden: module(hidden, hidden.new_zeros(hidden.shape[:2]))[0])


@system(
    "nystromformer",
    "Nyströmformer",
    "O(n)",
    f"transformers, {LANDMARKS} landmarks, convolution over {LANDMARK_CONVOLUTION} tokens (Xiong et al. 2021)",
)
def nystromformer(sizes: Encoder, device: torch.device) -> nn.Module:
    config = transformers.NystromformerConfig(
        **config_fields(sizes),
        num_landmarks=LANDMARKS,
        segment_means_seq_len=sizes.seq_len,
        conv_kernel_size=LANDMARK_CONVOLUTION,
    )
    return Called(transformers.NystromformerModel(config).encoder, first)


@system("fnet", "FNet", "O(n log n)", "transformers; no heads but a Fourier transform (Lee-Thorp et al. 2021)")
def fnet(sizes: Encoder, device: torch.device) -> nn.Module:
    fields = config_fields(sizes)
    for name in ("num_attention_heads", "attention_probs_dropout_prob"):
        del fields[name]
    return Called(transformers.FNetModel(transformers.FNetConfig(**fields), add_pooling_layer=False).encoder, first)


system("linformer", "Linformer (linformer-kit)", "O(n)", "LinformerModel, layerwise: E and F are one", projected=True)(
    ours
)
for width in (32, 64, WINDOW):
    system(
        f"window-{width}",
        f"Linformer, window {width} (linformer-kit)",
        "O(n)",
        f"the same with a sliding window of {width}",
        projected=True,
    )(partial(ours, window=width))


@system(
    "plain",
    "Linformer (linformer-kit, plain)",
    "O(n)",
    "the same model in torch's own products and attention, all tokens at once: what `kernels` saves",
    projected=True,
)
def plain(sizes: Encoder, device: torch.device) -> nn.Module:

    def call(module: nn.Module, hidden: Tensor) -> Tensor:
        with kernels.plain():
            return module(hidden)

    return Called(ours(sizes, device), call)


@system(
    "lucidrains",
    "Linformer (lucidrains)",
    "O(n)",
    "package linformer; E and F apart: it can share them only together with W_K and W_V",
    projected=True,
    package="linformer",
)
def lucidrains(sizes: Encoder, device: torch.device) -> nn.Module:
    from linformer import Linformer

    if sizes.intermediate_size != 4 * sizes.hidden_size:
        expected = f"4 × hidden_size, {4 * sizes.hidden_size} (fixed in that package)"
        raise InputError(f"intermediate_size: expected {expected}, got {sizes.intermediate_size}")
    heads, k = sizes.num_attention_heads, sizes.projected_dim
    return Linformer(sizes.hidden_size, sizes.seq_len, depth=1, k=k, heads=heads)


@system(
    "tatp22",
    "Linformer (tatp22)",
    "O(n)",
    "package linformer-pytorch, layerwise: E and F are one",
    projected=True,
    package="linformer-pytorch",
)
def tatp22(sizes: Encoder, device: torch.device) -> nn.Module:
    from linformer_pytorch import Linformer

    return Linformer(
        sizes.seq_len,
        sizes.hidden_size,
        dim_k=sizes.projected_dim,
        dim_ff=sizes.intermediate_size,
        nhead=sizes.num_attention_heads,
        depth=1,
        activation="gelu",
        parameter_sharing="layerwise",
    )
