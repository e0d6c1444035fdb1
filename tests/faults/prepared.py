"""What a process imports from which others are copied, so that each starts in a moment."""

import torch

import tests.faults.runs  # noqa: F401

torch.set_num_threads(1)
