"""The typed settings of `linformer bench`. Imports nothing heavy, so that `--help` stays instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Precision = Literal["auto", "float32", "bfloat16", "float16"]
Mode = Literal["forward", "train"]
Baseline = Literal["eager", "full", "roberta"]


@dataclass(kw_only=True)
class BenchSettings:
    """Common settings of all measurements: the machine, the width of the encoder, the output folder.

    Attributes:
        device: Device to measure: `cpu`, `cuda` or, with an index, `cuda:1`.
        dtype: Data type of weights and activations; `auto`: bfloat16, or float32 on a CPU without instructions for it.
        hidden_size: d_m, the width of the model.
        num_attention_heads: h, the number of heads per layer; must divide hidden_size.
        intermediate_size: Width of the feed-forward layer.
        seed: Seed of the random weights and tokens.
        output_dir: New or empty folder for the results; default: a new folder below runs/.
        overwrite: Overwrite the results in output_dir.
    """

    device: str = "cpu"
    dtype: Precision = "auto"
    hidden_size: int = 768
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    seed: int = 0
    output_dir: str | None = None
    overwrite: bool = False


@dataclass(kw_only=True)
class RateSettings(BenchSettings):
    """Common settings of measurements that also measure the machine's best rates.

    Attributes:
        tokens: Number of tokens per batch, at least one sequence; default: 4,096 on a CPU, else 65,536.
        square: Number of rows and columns of the matrices whose multiplication measures the peak rate (FLOP/s);
            default: 4,096 on a CPU, else 8,192.
        copy_mib: Size in MiB of the tensor for the copy bandwidth; must exceed the caches.
    """

    tokens: int | None = None
    square: int | None = None
    copy_mib: int = 512


@dataclass(kw_only=True)
class EfficiencySettings(RateSettings):
    """Time and memory of Linformer encoders and of Transformers of equal size.

    Attributes:
        mode: Measure a `forward` pass, or forward and backward as in training (`train`).
        lengths: Values of n in tokens; default: 512 to 65,536 in powers of two, in training on a CPU up to 8,192.
        projected_dims: Values of k; all pairs with k < n are measured.
        baselines: Transformers to compare with: scaled_dot_product_attention in this package (`full`) and in Hugging
            Face's RobertaModel (`roberta`), and softmax over a stored n×n matrix (`eager`).
        layers: Number of layers; default: 12 on an accelerator, on a CPU 2 up to n = 8,192 and 1 above.
        repetitions: Number of timed runs of each encoder; fewer if they exceed `seconds`.
        seconds: Time limit for all runs of one encoder at one length; at least one run is done.
        memory: Measure memory too, each encoder in a separate process.
        budget_gib: Memory in GiB for which the largest batch is determined.
        busy_cores: Number of other processes that each keep a core busy during the measurement, as on a shared machine.
    """

    mode: Mode = "forward"
    lengths: list[int] | None = None
    projected_dims: list[int] = field(default_factory=lambda: [128, 256, 512, 1024, 2048])
    baselines: list[Baseline] = field(default_factory=lambda: ["full", "roberta", "eager"])
    layers: int | None = None
    repetitions: int = 5
    seconds: float = 10.0
    memory: bool = True
    budget_gib: float = 16.0
    busy_cores: int = 0


@dataclass(kw_only=True)
class CeilingSettings(RateSettings):
    """The machine's limits: its best rates, and the time of a layer's matrix products alone.

    Attributes:
        lengths: Values of n in tokens.
        projected_dims: Values of k; all pairs with k < n are measured.
        repetitions: Number of runs of each product; the fastest counts.
    """

    lengths: list[int] = field(default_factory=lambda: [512, 4096, 16384])
    projected_dims: list[int] = field(default_factory=lambda: [256])
    repetitions: int = 5


@dataclass(kw_only=True)
class LongSettings(BenchSettings):
    """One pass of a Linformer encoder over a very long sequence.

    Attributes:
        n: Number of tokens of the long sequence.
        reference_length: Number of tokens of the short sequence to compare its time per token with.
        projected_dim: k, the number of slots.
        layers: Number of layers.
        vocab_size: Number of tokens in the vocabulary.
        repetitions: Number of timed runs over the short sequence; the long one runs once.
    """

    n: int = 1_048_576
    reference_length: int = 4096
    projected_dim: int = 256
    layers: int = 12
    vocab_size: int = 50265
    repetitions: int = 5


@dataclass(kw_only=True)
class SystemsSettings(BenchSettings):
    """One layer of each kind of encoder, timed at several sequence lengths.

    Attributes:
        mode: Time a `forward` pass, or forward and backward as in training (`train`).
        memory: Measure peak memory too, each layer in a separate process; on a CPU only on Linux.
        systems: Names of the systems to time (an unknown name lists them all); the report lists those that are not
            installed; default: all.
        lengths: Values of n in tokens.
        projected_dims: Values of k of the Linformers; all pairs with k < n are measured.
        tokens: Number of tokens per batch, at least one sequence; default: 4,096 on a CPU, else 65,536.
        repetitions: Number of timed runs of each layer at each length; the layers alternate.
        seconds: Time limit for all runs of one layer at one length; fewer runs if it is exceeded.
        max_seconds: Skip longer lengths for layers that take more seconds than this.
    """

    mode: Mode = "forward"
    memory: bool = False
    systems: list[str] | None = None
    lengths: list[int] = field(default_factory=lambda: [512, 1024, 2048, 4096, 8192, 16384])
    projected_dims: list[int] = field(default_factory=lambda: [256])
    tokens: int | None = None
    repetitions: int = 5
    seconds: float = 10.0
    max_seconds: float = 10.0
