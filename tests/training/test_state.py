"""The state of a training: loading restores what was saved, and invalid states are rejected."""

from __future__ import annotations

import json
import math
import re

import pytest

from linformer_kit import InputError
from linformer_kit.training.state import Position, TrainingState, read_state

LOG = [{"step": 2, "epoch": 0.4, "loss": 5.25}, {"step": 3, "epoch": 0.6, "eval_loss": math.nan}]


def write(folder, **changed: object):
    """A checkpoint's state with some values changed; those that are `...` are left out."""
    state = TrainingState(3, Position(0, 3), 0.6, [1.5, math.inf], LOG, {"scale": 65536.0, "_growth_tracker": 2})
    content = {name: value for name, value in {**state.to_json(), **changed}.items() if value is not ...}
    (folder / "trainer_state.json").write_text(json.dumps(content))
    return folder


def test_a_state_comes_back(tmp_path):
    found = read_state(write(tmp_path))
    assert (found.update, found.position) == (3, Position(0, 3))
    assert found.losses == [1.5, math.inf] and found.scaler == {"scale": 65536.0, "_growth_tracker": 2}
    assert found.log[0] == LOG[0] and math.isnan(found.log[1]["eval_loss"])


COUNT, LIST = "a count", "a list of numbers"
LINES = "a list of names and numbers, each with its step"


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("global_step", [..., None, -1, 1.0, True, "3", 2**63, [3]], COUNT),
        ("position", [None, 3, [0], [0, 1, 2], [0, -1], [0, 1.0], [True, 1], {"0": 1}, "01"], "two counts"),
        ("losses", [..., None, 1.5, ["1.5"], [None], [True], {"a": 1}], LIST),
        ("scaler", [..., None, [], [1.0], {"scale": "1"}, {"scale": None}, {"scale": True}], "numbers by name"),
        ("log_history", [..., None, {}, [3], [{"loss": 1.0}], [{"step": -1}], [{"step": 1.5}], [{"step": 1, "loss": "1"}], [{"step": 1, "loss": None}], [{"step": 1, "a": [1]}]], LINES),
    ],
)  # fmt: skip
def test_what_can_be_no_state_is_refused(name, values, expected, tmp_path):
    for value in values:
        path = write(tmp_path, **{name: value}) / "trainer_state.json"
        got = repr(None if value is ... else value)
        with pytest.raises(InputError, match=f"^{re.escape(f'{path}: expected {expected} as {name}, got {got}')}$"):
            read_state(tmp_path)


def test_a_long_value_is_shown_in_short(tmp_path):
    with pytest.raises(InputError, match=rf"as losses, got {re.escape(repr(['x' * 99])[:60])}…$"):
        read_state(write(tmp_path, losses=["x" * 99]))


@pytest.mark.parametrize("content", ["", "[]", "3", "{", "[" * 10**5])
def test_what_is_no_json_of_names_is_refused(content, tmp_path):
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path / 'trainer_state.json'))}: expected JSON"):
        read_state(tmp_path)
