"""Reading sdiag for the load that steering puts on slurmctld."""

import os
import threading
import time
from pathlib import Path

import pytest

from benchmarks.controller_load import figures, threads
from benchmarks.controller_load.arms import Arm, Stretch
from benchmarks.controller_load.sdiag import Cycles, Load, merged, read

TEXT = """\
Server thread count:  3
Jobs pending:   4809

Main schedule statistics (microseconds):
\tLast cycle:   106745
\tMax cycle:    437082
\tTotal cycles: {cycles}
{mean}\tLast queue length: 4809

Backfilling stats (WARNING: data obtained in the middle of backfilling execution.)
\tTotal backfilled jobs (since last slurm start): 45
\tTotal cycles: 11
\tLast cycle when: Sat Nov 21 15:02:15 2026 (1795273335)
\tLast cycle: 1924246
\tMax cycle:  3304455
\tMean cycle: 1868402

Remote Procedure Call statistics by message type
\tREQUEST_UPDATE_JOB                      ( 3001) count:49     ave_time:1000   total_time:49000
\tMESSAGE_EPILOG_COMPLETE                 ( 6012) count:6      ave_time:500    total_time:3000         queued:0      cycle_last:0      cycle_max:0      dropped:0

Remote Procedure Call statistics by user
\troot            (       0) count:55     ave_time:1000   total_time:52000
"""  # noqa: E501
BUSY = TEXT.format(cycles=50, mean="\tMean cycle:   2000\n\tMean depth cycle:  762\n")


def test_cycles_and_requests() -> None:
    load = read(BUSY, 30.0)
    assert load.main == Cycles(50, 100.0, 437.082, 50 * 762)
    assert load.backfill.mean_ms == pytest.approx(1868.402)
    assert load.requests == {"REQUEST_UPDATE_JOB": 49, "MESSAGE_EPILOG_COMPLETE": 6}
    assert load.request_ms == 52.0
    assert load.per_minute("REQUEST_UPDATE_JOB") == 98
    assert load.per_minute("REQUEST_SHUTDOWN") == 0


def test_no_cycle_yet() -> None:
    assert read(TEXT.format(cycles=0, mean=""), 1.0).main.mean_ms == 0


def test_stretches_weigh_by_their_cycles() -> None:
    quiet = read(TEXT.format(cycles=150, mean="\tMean cycle:   1000\n"), 90.0)
    both = merged([read(BUSY, 30.0), quiet])
    assert (both.seconds, both.main.count, both.main.mean_ms) == (120.0, 200, 1.25)
    assert both.requests["REQUEST_UPDATE_JOB"] == 98


def test_text_without_cycles_is_an_error() -> None:
    with pytest.raises(ValueError, match="no cycles"):
        read("slurm_get_statistics: Connection refused", 1.0)


def stretch(arm: Arm, main_ms: float, cpu_ms: float, updates: int = 0) -> Stretch:
    cycles = Cycles(10, 10 * main_ms, 2 * main_ms, 1000)
    return Stretch(arm, Load(30.0, cycles, cycles, {"REQUEST_UPDATE_JOB": updates}, 1.0), 10 * cpu_ms, 1.0)


def test_arms_are_compared_by_the_medians_of_their_stretches() -> None:
    alone = [stretch(Arm.WITHOUT, ms, 5.0) for ms in (10.0, 90.0, 12.0)]
    first = [stretch(Arm.FIRST, ms, 6.0, 100) for ms in (20.0, 18.0, 24.0)]
    steady = [stretch(Arm.STEADY, ms, 5.0, 5) for ms in (11.0, 80.0, 12.0)]
    found = figures.summary([*alone, *first, *steady])
    assert found["without"]["main_mean_ms"] == 12.0
    assert found["first passes"]["main_mean_ratio"] == pytest.approx(20 / 12, abs=1e-3)
    assert found["first passes"]["main_mean_ratio_by_round"] == [2.0, 0.2, 2.0]
    assert found["first passes"]["main_cpu_ratio"] == 1.2
    assert found["first passes"]["requests_added_per_minute"] == {"REQUEST_UPDATE_JOB": 200.0}
    assert found["steady"]["main_mean_ratio"] == 1.0
    assert [each["main_mean_ms"] for each in figures.raw(alone)] == [10.0, 90.0, 12.0]


def test_cpu_time_of_a_thread() -> None:
    comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()
    before = threads.cpu_ms(os.getpid(), comm)
    began_s = time.thread_time()
    while time.thread_time() < began_s + 0.05:  # the kernel may account for it in ticks of 10 ms
        pass
    assert threads.cpu_ms(os.getpid(), comm) > before
    with pytest.raises(LookupError, match="no thread 'nobody'"):
        threads.cpu_ms(os.getpid(), "nobody")
