"""Set-up of processes: each training in a process has its own device."""

from __future__ import annotations

import torch
from accelerate import PartialState

from linformer_kit.training.processes import start_processes


def test_a_later_training_has_the_device_of_its_own_settings(monkeypatch):
    """Accelerate keeps that of the first one; `meta` stands for an accelerator."""
    monkeypatch.setattr(PartialState, "default_device", torch.device("meta"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    devices = [start_processes(cpu=cpu, timeout=5).device.type for cpu in (True, False, True)]
    assert devices == ["cpu", "meta", "cpu"] and PartialState().device.type == "cpu"
