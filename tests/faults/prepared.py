"""Imports of the process from which test processes are forked, so that each starts quickly."""

import torch

import tests.faults.runs  # noqa: F401

torch.set_num_threads(1)
