"""What results say of the machine."""

from __future__ import annotations

import torch

from linformer_kit.environment import FIELDS, environment


def test_the_machine_is_named():
    told = environment(torch.device("cpu"))
    assert told.keys() == FIELDS
    assert told["device"] and told["threads"] == torch.get_num_threads() and told["torch"] == torch.__version__
