"""Global state of a process that a library must not change."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import warnings
from typing import Any

# Loaded first: some of these change filters, environment and generators themselves.
import accelerate  # noqa: F401
import datasets
import matplotlib
import numpy as np
import sklearn.metrics  # noqa: F401
import sympy  # noqa: F401
import torch
import torch.utils.benchmark
import transformers

_LOGGERS = ("", "linformer_kit", "transformers", "datasets", "torch", "accelerate", "matplotlib")


def process_state() -> dict[str, Any]:
    """Settings and generators of Python, torch, transformers, datasets and matplotlib, by name."""
    loggers = [(name, logging.getLogger(name)) for name in _LOGGERS]
    backends = torch.backends
    return {
        "matplotlib": dict(matplotlib.rcParams),
        "loggers": [(name, logger.level, list(map(str, logger.handlers)), logger.disabled) for name, logger in loggers],
        "warnings": list(map(str, warnings.filters)),
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "random": (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "numbers": (torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.get_autocast_dtype("cpu")),
        "modes": (torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), torch.is_autocast_enabled()),
        "backends": (backends.mkldnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic),
        "tf32": (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32),
        "progress bars": (
            datasets.utils.are_progress_bars_disabled(),
            transformers.utils.logging.is_progress_bar_enabled(),
            transformers.utils.logging.get_verbosity(),
        ),
        "interpreter": (sys.excepthook, sys.getrecursionlimit(), os.getcwd()),
    }


def changed(before: dict[str, Any]) -> list[str]:
    """The names of what is no longer as it was."""
    return [name for name, value in process_state().items() if value != before[name]]
