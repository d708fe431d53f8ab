"""What jobs like it tell of how long a job runs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from slurm_plugin.observation.history import Likeness, RunTimes, of_history

ADA = Likeness(1, "main", "ada", "resnet-1")
BOB = Likeness(1, "main", "bob", "probe-1")


def left_s(history: RunTimes, number: int, ran_s: float = 0.0) -> float:
    return float(history.left_s(np.array([number]), np.array([ran_s]))[0])


def known() -> RunTimes:
    return of_history([(ADA, 36_000.0), (BOB, 60.0)] * 12)


def test_a_job_is_expected_to_run_as_long_as_those_of_its_user_and_name() -> None:
    history = known()
    long, short = history.add(ADA._replace(name="resnet-77")), history.add(BOB)
    assert 10_000 < left_s(history, long) < 40_000  # the chance that it ends soon all the same counts, too
    assert 60 < left_s(history, short) < 120
    found = history.expected(long, (0.1, 0.5, 0.9))
    assert found is not None
    assert (found.run_s, found.alike_in) == ((36_000.0,) * 3, "user, name and GPUs")


def test_an_unknown_user_is_judged_by_queue_and_size_and_an_unknown_size_not_at_all() -> None:
    history = known()
    stranger, giant = history.add(Likeness(1, "main", "eve", "x")), history.add(Likeness(64, "main", "ada", "resnet-1"))
    found = history.expected(stranger, (0.0, 1.0))
    assert found is not None
    assert (found.run_s, found.alike_in) == ((60.0, 36_000.0), "queue and GPUs")
    assert history.expected(giant, (0.5,)) is None
    assert np.isnan(left_s(history, giant))


def test_what_is_left_falls_as_the_job_runs_and_is_judged_anew_when_it_runs_longer() -> None:
    history = known()
    job = history.add(BOB)
    first = left_s(history, job)
    assert left_s(history, job, 10.0) == pytest.approx(first - 10.0)
    assert left_s(history, job, 4000.0) > 4000.0  # as no other of this user: it can only be one of the long ones


def test_a_neighbour_that_ends_changes_what_is_expected() -> None:
    history = known()
    first, second = history.add(Likeness(1, "main", "cid", "new")), history.add(Likeness(1, "main", "cid", "new"))
    before = left_s(history, second)
    history.ended(first, 5.0)
    assert left_s(history, second) < before / 2


def test_of_many_jobs_submitted_at_once_those_in_the_middle_are_judged_by_the_last_that_ended() -> None:
    history = known()
    batch = [history.add(ADA) for _ in range(200)]
    assert left_s(history, batch[100]) > 10 * left_s(history, history.add(BOB))


def test_a_long_queue_is_judged_in_little_memory() -> None:
    history = known()
    numbers = np.array([history.add(ADA._replace(name=f"sweep{'x' * (i % 50)}")) for i in range(3_000)])
    tracemalloc.start()
    left_s = history.left_s(numbers, np.zeros(numbers.size))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not np.isnan(left_s).any()
    assert peak_bytes / numbers.size < 8_000  # of a queue of 50,000 it was 800 MB
