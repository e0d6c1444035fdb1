"""Time by alternating repetitions and peak memory in a fresh process, of any function; and the encoders measured so.

The encoders, Linformers and Transformers of equal size, have random weights and tokens: neither changes the cost.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, RobertaConfig

from linformer_cli.errors import PROCESS_KILLED, InputError, OutOfMemoryError
from linformer_cli.settings import CostSettings
from linformer_kit.models.configuration import LinformerConfig
from linformer_kit.report.environment import fast_dtype, peak_memory, status_bytes

Name = TypeVar("Name", bound=Hashable)

_CLEAR_REFS = Path("/proc/self/clear_refs")  # proc(5)
Kind = Literal["linformer", "full", "roberta", "eager"]
Mode = Literal["forward", "train"]
MODES: dict[Mode, str] = {"forward": "Forward pass", "train": "Forward and backward"}

_FIRST_ORDINARY = 5  # below are special tokens; RobertaModel derives positions from tokens that are not padding
_WARM_UP_TOKENS = 64


def interleaved(
    cases: Mapping[Name, Callable[[], object]],
    *,
    device: torch.device,
    repetitions: int = 5,
    seconds: float = 10.0,
) -> dict[Name, list[float]]:
    """Time cases alternately, so that other load of the machine affects all of them equally.

    Every round runs each case once, and the first one is a warm-up: it counts only for a case with no time for another.

    Args:
        cases: Functions to run, by name.
        device: Their device; accelerators are synchronised.
        repetitions: Number of rounds after the warm-up.
        seconds: Time limit for one case in all rounds; a run that would exceed it is skipped.

    Returns:
        The seconds of each run of each case, at least one.
    """
    timings: dict[Name, list[float]] = {name: [] for name in cases}
    for _ in range(1 + repetitions):
        for name, run in cases.items():
            if sum(timings[name]) + min(timings[name], default=0) <= seconds:
                timings[name].append(_timed(run, device))
    return {name: runs[1:] or runs for name, runs in timings.items()}


def _timed(run: Callable[[], object], device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    run()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def summary(runs: list[float]) -> dict[str, Any]:
    """Median, minimum and maximum in seconds, and number of runs."""
    return {"median_s": statistics.median(runs), "min_s": min(runs), "max_s": max(runs), "runs": len(runs)}


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a spawned process, without earlier allocations and with as many threads, and return its result.

    Raises:
        OutOfMemoryError: if the process was killed, as when memory runs out.
    """
    context = multiprocessing.get_context("spawn")
    threads = (torch.get_num_threads(),)
    # With one task the process ends after it, also if this one was killed.
    with ProcessPoolExecutor(1, context, _start_worker, threads, max_tasks_per_child=1) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise OutOfMemoryError(PROCESS_KILLED) from None


def _start_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is reported by the parent


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Peak memory while a function runs, minus the memory in use before.

    On a CPU this is the resident set of the process: measure in a fresh process, and amounts much larger than a few MB.
    On an accelerator it is the allocated memory.

    Raises:
        InputError: for a CPU on a system that does not report resident memory.
    """
    _synchronize(device)
    if device.type == "cpu":
        before = _reset_resident_peak()
    else:
        torch.accelerator.reset_peak_memory_stats(device)
        before = torch.accelerator.memory_allocated(device)
    run()
    _synchronize(device)
    return max(0, (peak_memory(device) or 0) - before)


def can_measure_memory(device: torch.device) -> bool:
    """Whether `peak_bytes` works: on an accelerator, and on Linux."""
    return device.type != "cpu" or os.access(_CLEAR_REFS, os.W_OK)


def _reset_resident_peak() -> int:
    """Return free memory to the system, reset the peak to the resident bytes, and return them.

    Freed memory that is still resident would be used again and not be counted.
    """
    if not can_measure_memory(torch.device("cpu")):
        raise InputError("memory: expected Linux (for the resident set in /proc) or an accelerator, got neither")
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)
    _CLEAR_REFS.write_text("5")
    return status_bytes("VmRSS") or 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder:
    """An encoder to build, without pooler and dropout.

    Attributes:
        kind: A Linformer with one E = F in all layers, this package's Transformer (`full`), or transformers'
            RobertaModel with scaled_dot_product_attention (`roberta`) or with a stored n×n matrix (`eager`).
        seq_len: n, the maximum sequence length, which is also the measured one.
        projected_dim: k; None for Transformers.
        vocab_size: Tokens in the vocabulary; small, as the time of the lookup does not depend on it.
    """

    kind: Kind
    seq_len: int
    projected_dim: int | None = None
    num_hidden_layers: int = 2
    hidden_size: int = 768
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    vocab_size: int = 1000


def encoder_of(settings: CostSettings, kind: Kind, seq_len: int, projected_dim: int | None, **fields: Any) -> Encoder:
    """An encoder of the widths in the settings."""
    widths = {name: getattr(settings, name) for name in ("hidden_size", "num_attention_heads", "intermediate_size")}
    return Encoder(kind=kind, seq_len=seq_len, projected_dim=projected_dim, **widths, **fields)


def build(encoder: Encoder, device: torch.device, dtype: torch.dtype, mode: Mode = "forward") -> nn.Module:
    """Build the model with random weights, initialised on the device and in the data type."""
    config: PreTrainedConfig
    fields, options = dataclasses.asdict(encoder), {}
    kind, seq_len, projected_dim = (fields.pop(name) for name in ("kind", "seq_len", "projected_dim"))
    fields |= {"hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if kind in ("roberta", "eager"):
        config = RobertaConfig(**fields, max_position_embeddings=seq_len + 2, type_vocab_size=1)
        options = {"attn_implementation": "sdpa" if kind == "roberta" else "eager", "add_pooling_layer": False}
    else:
        fields |= {"attention": "full"} if kind == "full" else {"projected_dim": projected_dim}
        config = LinformerConfig(**fields, max_position_embeddings=seq_len, sharing="layerwise")
    torch.manual_seed(0)
    with device:
        model = AutoModel.from_config(config, dtype=dtype, **options)
    return model.to(device).train(mode == "train")


def random_ids(encoder: Encoder, batch: int, device: torch.device) -> Int[Tensor, "batch seq_len"]:
    """Random token ids, without special tokens."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, encoder.seq_len)
    return torch.randint(_FIRST_ORDINARY, encoder.vocab_size, shape, generator=generator).to(device)


def runner(
    model: nn.Module, ids: Int[Tensor, "batch seq_len"], mode: Mode, *, keep_gradients: bool = False
) -> Callable[[], object]:
    """A function for one run: a forward pass, or forward and backward of the mean square of the output."""

    def step() -> None:
        model(input_ids=ids).last_hidden_state.float().square().mean().backward()
        if not keep_gradients:
            model.zero_grad(set_to_none=True)

    if mode == "train":
        return step
    return torch.inference_mode()(lambda: model(input_ids=ids).last_hidden_state)


def prepared(
    encoder: Encoder, batch: int, mode: Mode, device: torch.device, dtype: torch.dtype
) -> Callable[[], object]:
    """A function for one run of a new encoder on a batch of random tokens."""
    return runner(build(encoder, device, dtype, mode), random_ids(encoder, batch, device), mode)


def batch_of(tokens: int | None, seq_len: int, device: torch.device) -> int:
    """Sequences in a timed batch of about as many tokens, at least one; None: 4,096 tokens on a CPU, else 65,536."""
    return max(1, (tokens or (4096 if device.type == "cpu" else 65536)) // seq_len)


def memory_of(encoder: Encoder, batch: int, mode: Mode, device: torch.device, dtype: torch.dtype) -> int:
    """Peak bytes of one run minus those of weights and gradients, in use before it; on a CPU in a fresh process."""
    if device.type != "cpu":
        return _memory_of(encoder, batch, mode, device, dtype)
    return in_fresh_process(_memory_of, encoder, batch, mode, device, dtype)


def _memory_of(encoder: Encoder, batch: int, mode: Mode, device: torch.device, dtype: torch.dtype) -> int:
    model, ids = build(encoder, device, dtype, mode), random_ids(encoder, batch, device)
    short, whole = (runner(model, part, mode, keep_gradients=True) for part in (ids[:1, :_WARM_UP_TOKENS], ids))
    short()  # initialises libraries and allocates gradients
    return peak_bytes(whole, device)


def dtype_of(name: str, device: torch.device) -> str:
    """The data type, `auto` replaced by one that is fast for all encoders: bfloat16, or float32 on a CPU without it."""
    if name != "auto":
        return name
    return "bfloat16" if device.type != "cpu" or fast_dtype("auto", device) == torch.bfloat16 else "float32"
