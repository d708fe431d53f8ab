"""Reading sdiag for the load that steering puts on slurmctld."""

import pytest

from benchmarks.controller_load.sdiag import Cycles, merged, read

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
BUSY = TEXT.format(cycles=50, mean="\tMean cycle:   2000\n")


def test_cycles_and_requests() -> None:
    load = read(BUSY, 30.0)
    assert load.main == Cycles(50, 100.0, 437.082)
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
