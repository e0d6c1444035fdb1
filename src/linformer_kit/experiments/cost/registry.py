"""The systems that `bench systems` compares, by name. To add one, write its builder and add an entry."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from linformer_kit.experiments.cost import builders
from linformer_kit.experiments.cost.builders import (
    BIG_BIRD_BLOCK,
    BIG_BIRD_RANDOM_BLOCKS,
    LANDMARK_CONVOLUTION,
    LANDMARKS,
    LSH_CHUNK,
    LSH_HASHES,
    WINDOW,
)
from linformer_kit.settings.bench import SystemsSettings


@dataclass(frozen=True)
class System:
    """One kind of encoder layer.

    Attributes:
        label: Its name in tables.
        complexity: Complexity of a layer in the length n.
        note: The implementation measured.
        build: Function of settings, n and k that builds a module from `[batch, n, hidden_size]` to the same. k is None
            unless `projected`.
        claim: Source of the complexity: table 1 of the Linformer paper, or the system's own paper.
        projected: Whether it has a k.
        package: Optional distribution that it comes from, if any.
    """

    label: str
    complexity: str
    note: str
    build: Callable[[SystemsSettings, int, int | None], nn.Module]
    claim: str = "table 1"
    projected: bool = False
    package: str | None = None


SYSTEMS = {
    "recurrent": System(
        "Recurrent (LSTM)",
        "O(n)",
        "torch.nn.LSTM, half of the width in each direction, then the same feed-forward part",
        builders.recurrent,
    ),
    "transformer": System(
        "Transformer (RoBERTa)", "O(n²)", "transformers' RobertaModel with sdpa", builders.transformer
    ),
    "full": System("Transformer (linformer-kit)", "O(n²)", 'LinformerModel with attention="full"', builders.full),
    "sparse": System(
        "Sparse Transformer",
        "O(n√n)",
        "strided pattern, stride √n as a power of two; half of the heads near, half strided; FlexAttention, compiled",
        builders.sparse,
    ),
    "reformer": System(
        "Reformer",
        "O(n log n)",
        f"transformers, one LSH layer; {LSH_HASHES} hash, chunks of {LSH_CHUNK}, 2n/{LSH_CHUNK} buckets; "
        "queries are keys, which saves a product",
        builders.reformer,
    ),
    "blockwise": System(
        "Blockwise attention",
        "O(n)",
        f"RobertaModel with sdpa on blocks of {WINDOW} tokens, which do not see each other",
        builders.blockwise,
        claim="Qiu et al. 2019, with blocks of a fixed size",
    ),
    "longformer": System(
        "Longformer",
        "O(n)",
        f"transformers, window {WINDOW}, no global tokens",
        builders.longformer,
        claim="Beltagy et al. 2020",
    ),
    "bigbird": System(
        "BigBird",
        "O(n)",
        f"transformers, blocks of {BIG_BIRD_BLOCK}, {BIG_BIRD_RANDOM_BLOCKS} random; full attention up to "
        f"{(5 + 2 * BIG_BIRD_RANDOM_BLOCKS) * BIG_BIRD_BLOCK} tokens, as there",
        builders.big_bird,
        claim="Zaheer et al. 2020",
    ),
    "nystromformer": System(
        "Nyströmformer",
        "O(n)",
        f"transformers, {LANDMARKS} landmarks, convolution over {LANDMARK_CONVOLUTION} tokens",
        builders.nystromformer,
        claim="Xiong et al. 2021",
    ),
    "fnet": System(
        "FNet",
        "O(n log n)",
        "transformers; no heads but a Fourier transform",
        builders.fnet,
        claim="Lee-Thorp et al. 2021",
    ),
    "linformer": System(
        "Linformer (linformer-kit)",
        "O(n)",
        "LinformerModel, layerwise: E and F are one",
        builders.linformer,
        projected=True,
    ),
    **{
        f"window-{window}": System(
            f"Linformer, window {window} (linformer-kit)",
            "O(n)",
            f"the same with a sliding window of {window}",
            functools.partial(builders.windowed_linformer, window=window),
            claim="linear in n and in k + w",
            projected=True,
        )
        for window in (32, 64, WINDOW)
    },
    "plain": System(
        "Linformer (linformer-kit, plain)",
        "O(n)",
        "the same model in torch's own products and attention, all tokens at once: what `kernels` saves",
        builders.plain_linformer,
        projected=True,
    ),
    "lucidrains": System(
        "Linformer (lucidrains)",
        "O(n)",
        "package linformer; E and F apart: it can share them only together with W_K and W_V",
        builders.lucidrains,
        projected=True,
        package="linformer",
    ),
    "tatp22": System(
        "Linformer (tatp22)",
        "O(n)",
        "package linformer-pytorch, layerwise: E and F are one",
        builders.tatp22,
        projected=True,
        package="linformer-pytorch",
    ),
}
