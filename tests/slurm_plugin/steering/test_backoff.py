"""A busy slurmctld is left alone, but not for ever."""

import itertools

import pytest

from slurm_plugin.client.capabilities import RateLimit
from slurm_plugin.client.records import ControllerLoad
from slurm_plugin.config import BackpressureSection
from slurm_plugin.steering.backpressure import Backoff, backoff, most_written

LIMITS = BackpressureSection(server_threads=8, cycle_s=2.0, max_interval_s=60.0)
QUIET = ControllerLoad(1, 0.01, 0.5, 5000)
USUAL_S = 15.0


@pytest.mark.parametrize(
    "load", [ControllerLoad(8, 0.01, 0.5, 5000), ControllerLoad(1, 2.1, 0.5, 5000)], ids=["threads", "cycle"]
)
def test_passes_are_put_off_twice_as_long_each_time(load: ControllerLoad) -> None:
    paces = list(
        itertools.accumulate(
            range(5),
            lambda last, _: backoff(load, last.interval_s, USUAL_S, LIMITS),
            initial=Backoff(USUAL_S, may_pass=True, is_busy=False),
        )
    )
    assert [step.interval_s for step in paces] == [15, 30, 60, 60, 60, 60]
    assert [step.may_pass for step in paces] == [True, False, False, True, True, True]


def test_a_quiet_slurmctld_brings_the_usual_interval_back_at_once() -> None:
    assert backoff(QUIET, 60.0, USUAL_S, LIMITS) == Backoff(USUAL_S, may_pass=True, is_busy=False)


def test_a_usual_interval_beyond_the_widest_is_never_shortened() -> None:
    busy = ControllerLoad(8, 0.01, 0.5, 5000)
    assert backoff(busy, 100.0, 100.0, LIMITS) == Backoff(100.0, may_pass=True, is_busy=True)


@pytest.mark.parametrize(
    ("limit", "most"), [(None, 200), (RateLimit(30, 2.0), 15), (RateLimit(1000, 100.0), 200), (RateLimit(2, 1.0), 1)]
)
def test_a_pass_writes_what_slurmctld_lets_through(limit: RateLimit | None, most: int) -> None:
    assert most_written(limit, USUAL_S, 200) == most
