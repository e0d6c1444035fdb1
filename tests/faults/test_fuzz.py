"""For any content of a file, a command gives a result or an error of one line: never a crash, never a hang."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.faults.fuzz import case

pytestmark = pytest.mark.e2e

QUICK_SECONDS = 5  # in each run of the tests
SLOW_SECONDS = 600  # marked slow


@pytest.mark.parametrize("seconds", [QUICK_SECONDS, pytest.param(SLOW_SECONDS, marks=pytest.mark.slow)])
def test_any_file_gives_a_result_or_one_line(places, seconds):
    end, failures = time.monotonic() + seconds, []
    for seed in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
        if (failure := case(seed, places)) is not None:
            failures.append(failure)
    assert not failures, "\n\n".join(failures[:10])
    assert {outcome[-2:] for outcome in places.outcomes} == {" 0", " 2"}, places.outcomes
