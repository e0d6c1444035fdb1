"""The systems that are compared: one function for each, which builds a single encoder layer with its feed-forward part.

All have the width, heads and feed-forward size of the settings, exact GELU and random weights. Embeddings do not count:
each takes hidden states to hidden states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    RobertaConfig,
    RobertaModel,
)

from linformer_kit.errors import InputError
from linformer_kit.experiments.cost.layers import Called, EncoderLayer, StridedAttention, bidirectional_lstm
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.models.modeling import LinformerModel
from linformer_kit.operator import kernels
from linformer_kit.settings.bench import SystemsSettings

# The sizes that each paper's own models have.
WINDOW = 512  # tokens; Longformer's window, and the blocks of blockwise attention, so that both see as many
BIG_BIRD_BLOCK = 64
BIG_BIRD_RANDOM_BLOCKS = 3
LANDMARKS = 64
LANDMARK_CONVOLUTION = 65
LSH_CHUNK = 64
LSH_HASHES = 1

_VOCABULARY = 8  # unused, but transformers' models have one


@dataclass(frozen=True)
class System:
    """One kind of encoder layer.

    Attributes:
        label: Its name in tables.
        complexity: Of a layer in the length n.
        note: What it is here.
        build: Settings, n and k to a module that takes `[batch, n, hidden_size]` to the same. k is None unless
            `projected`.
        claim: Where the complexity is said: table 1 of the Linformer paper, or the system's own paper.
        projected: Whether it has a k.
        package: The distribution that it comes from, if that is an optional one.
    """

    label: str
    complexity: str
    note: str
    build: Callable[[SystemsSettings, int, int | None], nn.Module]
    claim: str = "table 1"
    projected: bool = False
    package: str | None = None


def _sizes(settings: SystemsSettings) -> dict[str, Any]:
    """What the configurations of transformers and ours have in common."""
    return {
        "hidden_size": settings.hidden_size,
        "num_attention_heads": settings.num_attention_heads,
        "intermediate_size": settings.intermediate_size,
        "num_hidden_layers": 1,
        "hidden_act": "gelu",
        "vocab_size": _VOCABULARY,
    }


def _multiple_of(size: int, n: int, what: str) -> None:
    if n % size:
        raise InputError(f"n: expected a multiple of the {what}, {size}, got {n}")


def _first(module: nn.Module, hidden: Tensor) -> Tensor:
    """What transformers' encoders give for hidden states alone."""
    return module(hidden)[0]


def _recurrent(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    return EncoderLayer(bidirectional_lstm(settings.hidden_size), settings.hidden_size, settings.intermediate_size)


def _transformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    config = RobertaConfig(**_sizes(settings), attn_implementation="sdpa")
    return Called(RobertaModel(config, add_pooling_layer=False).encoder, _first)


def _ours(settings: SystemsSettings, n: int, **fields: Any) -> nn.Module:
    config = LinformerConfig(**_sizes(settings), max_position_embeddings=n, **fields)
    encoder = LinformerModel(config, add_pooling_layer=False).encoder

    def call(module: nn.Module, hidden: Tensor) -> Tensor:
        return module(hidden, None, output_attentions=False, output_hidden_states=False).last_hidden_state

    return Called(encoder, call)


def _full(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    return _ours(settings, n, attention="full")


def _linformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    return _ours(settings, n, projected_dim=k, sharing="layerwise")


def _plain_linformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    linformer = _linformer(settings, n, k)

    def call(module: nn.Module, hidden: Tensor) -> Tensor:
        with kernels.plain():
            return module(hidden)

    return Called(linformer, call)


def _sparse(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    attention = StridedAttention(settings.hidden_size, settings.num_attention_heads, n, device=settings.device)
    return EncoderLayer(attention, settings.hidden_size, settings.intermediate_size)


def _blockwise(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    block = min(WINDOW, n)
    _multiple_of(block, n, "block")
    # Attention within blocks, and all else token by token: a Transformer with the blocks as its batch.
    return Called(
        _transformer(settings, n, k),
        lambda module, hidden: module(hidden.reshape(-1, block, hidden.shape[-1])).view_as(hidden),
    )


def _longformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    _multiple_of(WINDOW, n, "window")
    model = LongformerModel(LongformerConfig(**_sizes(settings), attention_window=WINDOW), add_pooling_layer=False)
    # The mask has 0 on tokens with local attention.
    return Called(model.encoder, lambda module, hidden: module(hidden, hidden.new_zeros(hidden.shape[:2]))[0])


def _reformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    _multiple_of(LSH_CHUNK, n, "chunk")
    sizes = _sizes(settings)
    config = ReformerConfig(
        **{name: sizes[name] for name in ("hidden_size", "num_attention_heads", "hidden_act", "vocab_size")},
        attention_head_size=settings.hidden_size // settings.num_attention_heads,
        feed_forward_size=settings.intermediate_size,
        attn_layers=["lsh"],
        lsh_attn_chunk_length=LSH_CHUNK,
        num_hashes=LSH_HASHES,
        max_position_embeddings=n,
        axial_pos_embds=False,
    )
    # Its residuals are reversible: two streams, which are one and the same before the first layer.
    return Called(ReformerModel(config).encoder.layers[0], lambda module, hidden: module(hidden, hidden).hidden_states)


def _big_bird(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    _multiple_of(BIG_BIRD_BLOCK, n, "block")
    # As transformers does: where it has too few blocks to draw from, it attends to all.
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


def _nystromformer(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    _multiple_of(LANDMARKS, n, "number of landmarks")
    config = NystromformerConfig(
        **_sizes(settings),
        num_landmarks=LANDMARKS,
        segment_means_seq_len=n,
        conv_kernel_size=LANDMARK_CONVOLUTION,
    )
    return Called(NystromformerModel(config).encoder, _first)


def _fnet(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    sizes = _sizes(settings)
    del sizes["num_attention_heads"]
    return Called(FNetModel(FNetConfig(**sizes), add_pooling_layer=False).encoder, _first)


def _lucidrains(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
    from linformer import Linformer

    if settings.intermediate_size != 4 * settings.hidden_size:
        raise InputError(
            f"intermediate_size: expected 4 × hidden_size, {4 * settings.hidden_size}, which it cannot change, "
            f"got {settings.intermediate_size}"
        )
    return Linformer(settings.hidden_size, n, depth=1, k=k, heads=settings.num_attention_heads)


def _tatp22(settings: SystemsSettings, n: int, k: int | None) -> nn.Module:
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


SYSTEMS = {
    "recurrent": System(
        "Recurrent (LSTM)",
        "O(n)",
        "torch.nn.LSTM, half of the width in each direction, then the same feed-forward part",
        _recurrent,
    ),
    "transformer": System("Transformer (RoBERTa)", "O(n²)", "transformers' RobertaModel with sdpa", _transformer),
    "full": System("Transformer (linformer-kit)", "O(n²)", 'LinformerModel with attention="full"', _full),
    "sparse": System(
        "Sparse Transformer",
        "O(n√n)",
        "strided pattern, stride √n as a power of two; half of the heads near, half strided; FlexAttention, compiled",
        _sparse,
    ),
    "reformer": System(
        "Reformer",
        "O(n log n)",
        f"transformers, one LSH layer; {LSH_HASHES} hash, chunks of {LSH_CHUNK}, 2n/{LSH_CHUNK} buckets; "
        "queries are keys, which saves a product",
        _reformer,
    ),
    "blockwise": System(
        "Blockwise attention",
        "O(n)",
        f"RobertaModel with sdpa on blocks of {WINDOW} tokens, which do not see each other",
        _blockwise,
        claim="Qiu et al. 2019, with blocks of a fixed size",
    ),
    "longformer": System(
        "Longformer",
        "O(n)",
        f"transformers, window {WINDOW}, no global tokens",
        _longformer,
        claim="Beltagy et al. 2020",
    ),
    "bigbird": System(
        "BigBird",
        "O(n)",
        f"transformers, blocks of {BIG_BIRD_BLOCK}, {BIG_BIRD_RANDOM_BLOCKS} random; full attention up to "
        f"{(5 + 2 * BIG_BIRD_RANDOM_BLOCKS) * BIG_BIRD_BLOCK} tokens, as there",
        _big_bird,
        claim="Zaheer et al. 2020",
    ),
    "nystromformer": System(
        "Nyströmformer",
        "O(n)",
        f"transformers, {LANDMARKS} landmarks, convolution over {LANDMARK_CONVOLUTION} tokens",
        _nystromformer,
        claim="Xiong et al. 2021",
    ),
    "fnet": System(
        "FNet", "O(n log n)", "transformers; no heads but a Fourier transform", _fnet, claim="Lee-Thorp et al. 2021"
    ),
    "linformer": System(
        "Linformer (linformer-kit)", "O(n)", "LinformerModel, layerwise: E and F are one", _linformer, projected=True
    ),
    "plain": System(
        "Linformer (linformer-kit, plain)",
        "O(n)",
        "the same model in torch's own products and attention, all tokens at once: what `kernels` saves",
        _plain_linformer,
        projected=True,
    ),
    "lucidrains": System(
        "Linformer (lucidrains)",
        "O(n)",
        "package linformer; E and F apart: it can share them only together with W_K and W_V",
        _lucidrains,
        projected=True,
        package="linformer",
    ),
    "tatp22": System(
        "Linformer (tatp22)",
        "O(n)",
        "package linformer-pytorch, layerwise: E and F are one",
        _tatp22,
        projected=True,
        package="linformer-pytorch",
    ),
}
