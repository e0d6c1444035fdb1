"""Hardware and software of this machine: device, memory of the process, fast data type, versions, commit."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from linformer_cli._version import __version__
from linformer_cli.errors import input_errors
from linformer_kit.operator.kernels import Processor


def environment(device: torch.device) -> dict[str, Any]:
    """Machine, versions and commit, to record with results; None for a package that is not installed."""
    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "device_type": device.type,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _version(name) for name in ("transformers", "accelerate", "datasets", "tokenizers")},
        "linformer_kit": __version__,
        "commit": _commit(),
    }


def peak_memory(device: torch.device) -> int | None:
    """Peak memory of this process in bytes: resident on a CPU, allocated on an accelerator; None if unknown."""
    if device.type != "cpu":
        return torch.accelerator.max_memory_allocated(device)
    return status_bytes("VmHWM")


def status_bytes(name: str) -> int | None:
    """A memory value of this process from /proc/self/status, by its name in proc(5), in bytes; None if not on Linux."""
    status = Path("/proc/self/status")
    size = re.search(rf"^{name}:\s+(\d+) kB$", status.read_text() if status.exists() else "", re.MULTILINE)
    return int(size[1]) * 1024 if size else None


def device_of(name: str | torch.device | None) -> torch.device:
    """The device with its index; None: the accelerator if there is one, else the CPU.

    Raises:
        InputError: if it is not available.
    """
    if name is None:
        return best_device()
    with input_errors(f"device: expected cpu or an available accelerator, got {name}"):
        return torch.empty(0, device=name).device


def best_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


# Data types of weights by the setting `dtype`; None: as they are.
WEIGHT_DTYPES = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}


def fast_dtype(asked: str, device: torch.device) -> torch.dtype:
    """The data type of that name; `auto`: bfloat16 if the processor has instructions for it, else float32."""
    if asked != "auto":
        return getattr(torch, asked)
    if device.type == "cpu":
        here = Processor.here()
        is_fast = bool(here.capabilities) and here.has_instructions(torch.bfloat16)
    else:
        is_fast = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if is_fast else torch.float32


def _version(package: str) -> str | None:
    """The version of a package; None if it is not installed, since some are of extras."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Model name of the processor and, on Linux, its family, since generations may share a name."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().partition("\n\n")[0] if information.exists() else ""
    fields = dict(re.findall(r"^([^\t:]+)\t*: (.*)$", lines, re.MULTILINE))
    name = fields.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else name


def _commit() -> str | None:
    """The git commit of the package, with `+` appended if files have changed; None outside its own git checkout."""
    root = Path(__file__).parents[3]
    project = root / "pyproject.toml"
    if not ((root / ".git").exists() and project.exists() and 'name = "linformer-kit"' in project.read_text()):
        return None  # installed, or copied into another project, whose commits say nothing of the package
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    of_here = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # not of a git hook
    try:
        return subprocess.check_output(command, cwd=root, env=of_here, stderr=subprocess.DEVNULL, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return None
