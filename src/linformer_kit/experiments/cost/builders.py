"""A function for each system, which builds a single encoder layer with its feed-forward part.

All have the width, heads and feed-forward size of the settings, exact GELU and random weights. They map hidden states
to hidden states, without embeddings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BigBirdConfig,
    BigBirdModel,
    FNetConfig,
    FNetModel,
    LongformerConfig,
    LongformerModel,
    NystromformerConfig,
    NystromformerModel,
    ReformerConfig,
    ReformerModel,
)

from linformer_kit.errors import InputError
from linformer_kit.experiments.cost.encoders import KINDS, Encoder, Kind, sizes
from linformer_kit.experiments.cost.layers import Called, EncoderLayer, StridedAttention, bidirectional_lstm
from linformer_kit.operator import kernels
from linformer_kit.operator.attention import LinformerAttention
from linformer_kit.settings.bench import SystemsSettings

# The sizes of the models in each system's paper.
WINDOW = 512  # tokens; Longformer's window, the largest of ours, and the blocks of blockwise attention
BIG_BIRD_BLOCK = 64
BIG_BIRD_RANDOM_BLOCKS = 3
LANDMARKS = 64
LANDMARK_CONVOLUTION = 65
LSH_CHUNK = 64
LSH_HASHES = 1

_VOCABULARY = 8  # unused, but required by transformers' models


def _sizes(settings: SystemsSettings) -> dict[str, Any]:
    """The common fields of transformers' configurations."""
    return sizes(settings, layers=1, vocab_size=_VOCABULARY)


def _multiple_of(size: int, n: int, what: str) -> None:
    if n % size:
        raise InputError(f"n: expected a multiple of the {what}, {size}, got {n}")


def _first(module: nn.Module, hidden: Tensor) -> Tensor:
    """The hidden states that transformers' encoders return for hidden states alone."""
    return module(hidden)[0]


def _ours(module: nn.Module, hidden: Tensor) -> Tensor:
    return module(hidden, None, output_attentions=False, output_hidden_states=False).last_hidden_state


def _one_layer(kind: Kind, settings: SystemsSettings, n: int, k: int | None = None) -> nn.Module:
    """The encoder of a one-layer model of `encoders.KINDS`."""
    encoder = Encoder(kind=kind, seq_len=n, layers=1, projected_dim=k, vocab_size=_VOCABULARY)
    return KINDS[kind](encoder, settings).encoder


def recurrent(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """A bidirectional LSTM."""
    return EncoderLayer(bidirectional_lstm(settings.hidden_size), settings.hidden_size, settings.intermediate_size)


def transformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """RoBERTa's layer, with scaled_dot_product_attention."""
    return Called(_one_layer("roberta", settings, n), _first)


def full(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """This package's layer with full attention."""
    return Called(_one_layer("full", settings, n), _ours)


def linformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """This package's Linformer, layerwise sharing."""
    return Called(_one_layer("linformer", settings, n, k), _ours)


def windowed_linformer(settings: SystemsSettings, n: int, k: int | None, *, window: int) -> nn.Module:
    """As `linformer`, with a sliding window."""
    encoder = _one_layer("linformer", settings, n, k)
    for module in encoder.modules():
        if isinstance(module, LinformerAttention):
            module.sliding_window = window
    return Called(encoder, _ours)


def plain_linformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """As `linformer`, without the optimised kernels."""
    layer = linformer(settings, n, k)

    def call(module: nn.Module, hidden: Tensor) -> Tensor:
        with kernels.plain():
            return module(hidden)

    return Called(layer, call)


def sparse(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """The strided pattern of the Sparse Transformer."""
    attention = StridedAttention(settings.hidden_size, settings.num_attention_heads, n, device=settings.device)
    return EncoderLayer(attention, settings.hidden_size, settings.intermediate_size)


def blockwise(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """Full attention within blocks of `WINDOW` tokens."""
    block = min(WINDOW, n)
    _multiple_of(block, n, "block")
    # All other operations work on single tokens, so this is a Transformer with the blocks as its batch.
    return Called(
        transformer(settings, n, k),
        lambda module, hidden: module(hidden.reshape(-1, block, hidden.shape[-1])).view_as(hidden),
    )


def longformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """A window of `WINDOW` tokens, no global tokens."""
    _multiple_of(WINDOW, n, "window")
    model = LongformerModel(LongformerConfig(**_sizes(settings), attention_window=WINDOW), add_pooling_layer=False)
    # The mask has 0 on tokens with local attention.
    return Called(model.encoder, lambda module, hidden: module(hidden, hidden.new_zeros(hidden.shape[:2]))[0])


def reformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """One LSH layer."""
    _multiple_of(LSH_CHUNK, n, "chunk")
    fields = _sizes(settings)
    config = ReformerConfig(
        **{name: fields[name] for name in ("hidden_size", "num_attention_heads", "hidden_act", "vocab_size")},
        attention_head_size=settings.hidden_size // settings.num_attention_heads,
        feed_forward_size=settings.intermediate_size,
        attn_layers=["lsh"],
        lsh_attn_chunk_length=LSH_CHUNK,
        num_hashes=LSH_HASHES,
        max_position_embeddings=n,
        axial_pos_embds=False,
    )
    # Its residuals are reversible: two streams, which are equal before the first layer.
    return Called(ReformerModel(config).encoder.layers[0], lambda module, hidden: module(hidden, hidden).hidden_states)


def big_bird(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """Local, random and global blocks."""
    _multiple_of(BIG_BIRD_BLOCK, n, "block")
    # As in transformers: with too few blocks to draw from, it uses full attention.
    whole = n <= (5 + 2 * BIG_BIRD_RANDOM_BLOCKS) * BIG_BIRD_BLOCK
    config = BigBirdConfig(
        **_sizes(settings),
        attention_type="original_full" if whole else "block_sparse",
        block_size=BIG_BIRD_BLOCK,
        num_random_blocks=BIG_BIRD_RANDOM_BLOCKS,
        max_position_embeddings=n,
    )
    model = BigBirdModel(config, add_pooling_layer=False)
    if whole:
        return Called(model.encoder, _first)
    names = ("blocked_encoder_mask", "band_mask", "from_mask", "to_mask")
    ones = torch.ones(1, n, device=settings.device)
    masks = dict(zip(names, model.create_masks_for_block_sparse_attn(ones, BIG_BIRD_BLOCK), strict=True))

    def call(module: nn.Module, hidden: Tensor) -> Tensor:
        return module(hidden, **{name: mask.expand(len(hidden), *mask.shape[1:]) for name, mask in masks.items()})[0]

    return Called(model.encoder, call)


def nystromformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """`LANDMARKS` landmarks."""
    _multiple_of(LANDMARKS, n, "number of landmarks")
    config = NystromformerConfig(
        **_sizes(settings),
        num_landmarks=LANDMARKS,
        segment_means_seq_len=n,
        conv_kernel_size=LANDMARK_CONVOLUTION,
    )
    return Called(NystromformerModel(config).encoder, _first)


def fnet(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """A Fourier transform in place of attention."""
    fields = _sizes(settings)
    for name in ("num_attention_heads", "attention_probs_dropout_prob"):
        del fields[name]
    return Called(FNetModel(FNetConfig(**fields), add_pooling_layer=False).encoder, _first)


def lucidrains(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """The layer of the package linformer."""
    from linformer import Linformer

    if settings.intermediate_size != 4 * settings.hidden_size:
        raise InputError(
            f"intermediate_size: expected 4 × hidden_size, {4 * settings.hidden_size} (fixed in that package), "
            f"got {settings.intermediate_size}"
        )
    return Linformer(settings.hidden_size, n, depth=1, k=k, heads=settings.num_attention_heads)


def tatp22(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    """The layer of the package linformer-pytorch."""
    from linformer_pytorch import Linformer

    return Linformer(
        n,
        settings.hidden_size,
        dim_k=k,
        dim_ff=settings.intermediate_size,
        nhead=settings.num_attention_heads,
        depth=1,
        activation="gelu",
        parameter_sharing="layerwise",
    )
