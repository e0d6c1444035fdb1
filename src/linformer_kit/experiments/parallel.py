"""Independent pieces of work in a pool, recorded as they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, as_completed
from typing import TypeVar

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


def run_all(
    pool: Executor,
    jobs: Iterable[Job],
    start: Callable[[Job], Future[Outcome]],
    record: Callable[[Job, Future[Outcome]], None],
) -> None:
    """Start all jobs, and record each when it has ended.

    If one fails, or on Ctrl-C, those that have not begun are cancelled, and those that end successfully are recorded.

    Args:
        pool: Where the jobs run.
        jobs: The jobs.
        start: Submits a job to the pool.
        record: Takes what has ended; its errors, those of the job among them, end everything.
    """
    running: dict[Future[Outcome], Job] = {}
    recorded: set[Future[Outcome]] = set()
    try:
        for job in jobs:
            running[start(job)] = job
        for future in as_completed(running):
            recorded.add(future)
            record(running[future], future)
    except BaseException:
        pool.shutdown(cancel_futures=True)  # waits for the running ones
        for future, job in running.items():
            if future not in recorded and not future.cancelled() and future.exception() is None:
                record(job, future)
        raise
