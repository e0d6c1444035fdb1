"""The settings of `linformer bench systems`. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(kw_only=True)
class SystemsSettings:
    """One layer of each kind of encoder, timed against the length of the sequence.

    Attributes:
        systems: Which to time; default: all. Those that are not installed are named in the results.
        lengths: n in tokens; default: 512 and its doublings up to 16,384.
        projected_dims: k of the Linformers; each is run with every k that is below n. Default: 256.
        hidden_size: Width of the layers.
        num_attention_heads: Heads in a layer; divides hidden_size.
        intermediate_size: Width of the feed-forward part, the same in all layers.
        tokens: Tokens in a batch: tokens / n sequences, at least one.
        device: Where to run, as torch names it.
        dtype: Type of weights and activations. What does not run in it is named in the results.
        repetitions: Timed runs of each layer at each length, the layers in turn.
        seconds: Time for all runs of one layer at one length; when it is used up, fewer runs have to do.
        max_seconds: A layer that takes longer than this is not run at longer lengths.
        seed: Seed of weights and inputs.
        output_dir: New folder for the results; default: a new folder below runs/.
    """

    systems: list[str] | None = None
    lengths: list[int] | None = None
    projected_dims: list[int] | None = None
    hidden_size: int = 768
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    tokens: int = 4096
    device: str = "cpu"
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    repetitions: int = 5
    seconds: float = 10.0
    max_seconds: float = 10.0
    seed: int = 0
    output_dir: str | None = None
