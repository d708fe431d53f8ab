"""The parts of the live replay that need no cluster, on jobs whose numbers can be worked out by hand."""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.live_replay import figures, live, log, report, shared
from benchmarks.live_replay.live import LiveJob
from benchmarks.live_replay.workload import compressed, sbatch_options
from sched_policy.catalog import PolicyOptions
from simulation.cluster.settings import PassTimes, Settings
from simulation.traces.trace import StageTimes, Trace, TraceJob

STAGES = ((0.9, 0.1, 0.0), (0.1, 0.9, 0.0))
TRACE = Trace.of([TraceJob(1, 100.0, 8, 500.0), TraceJob(2, 200.0, 32, 1000.0), TraceJob(3, 300.0, 1, 10.0)])


def test_arrivals_and_run_times_are_divided_by_the_same_factor() -> None:
    jobs = compressed(TRACE, 2, 10.0, seed=1).jobs
    assert [(j.job_id, j.submit_s, j.run_s) for j in jobs] == [(1, 0.0, 50.0), (2, 10.0, 100.0)]


def test_a_second_of_run_time_is_declared_as_one_minute_or_up_to_ten() -> None:
    for each in compressed(TRACE, 3, 10.0, seed=1).jobs:
        assert each.time_limit_s is not None
        assert each.time_limit_s % 60 == 0
        assert 1.2 * each.run_s <= each.time_limit_s / 60 <= 10 * each.run_s + 1


def test_shared_jobs_ask_for_one_shard_and_say_their_compressed_stages() -> None:
    gang = TraceJob(1, 100.0, 8, 500.0, iterations=50, stages=StageTimes(4.0, 6.0, 0.0))
    (job,) = shared.compressed(Trace.of([gang]), 1, 100.0).jobs
    assert (job.submit_s, job.run_s, job.gpus) == (0.0, 5.0, 1)
    assert {"--gres=shard:1", "--comment=explsched:checkpoint=USR1&stages=100/40/60/0"} <= set(shared.options(job))
    short = TraceJob(1, 100.0, 8, 500.0, iterations=50, stages=StageTimes(4.0, 6.0, 3e-6))
    (job,) = shared.compressed(Trace.of([short]), 1, 100.0).jobs
    assert "--comment=explsched:checkpoint=USR1&stages=100/40/60/0.00003" in shared.options(
        job
    )  # no exponents, which no job option accepts


def test_a_shared_replay_may_begin_in_the_midst_of_a_trace() -> None:
    gangs = [TraceJob(i, 100.0 * i, 8, 500.0, iterations=50, stages=StageTimes(4.0, 6.0, 0.0)) for i in range(1, 6)]
    jobs = shared.compressed(Trace.of(gangs), 2, 100.0, skipped=2).jobs
    assert [(job.job_id, job.submit_s) for job in jobs] == [(3, 0.0), (4, 1.0)]


def test_members_of_a_group_are_slower_than_alone_and_one_alone_is_not() -> None:
    jobs = [TraceJob(i, 0.0, 1, 100.0, iterations=100, stages=StageTimes(*times)) for i, times in enumerate(STAGES)]
    reads, computes = (shared.profile(job) for job in jobs)
    assert shared.speeds({7: reads}) == {7: 1.0}
    together = shared.speeds({7: reads, 8: computes})
    assert 0.5 < together[7] == together[8] < 1.0
    assert shared.speeds({}) == {}


def test_a_large_gang_asks_for_whole_nodes() -> None:
    small, large, _ = compressed(TRACE, 3, 10.0, seed=1).jobs
    assert {"--nodes=1", "--gpus-per-node=8"} <= set(sbatch_options(small))
    assert {"--nodes=4", "--gpus-per-node=8"} <= set(sbatch_options(large))


def run(start_s: float, end_s: float | None, nodes: str = "n1", *, backfilled: bool = False) -> log.Run:
    return log.Run(start_s, end_s, backfilled, nodes)


def test_live_figures_leave_out_lost_jobs_and_count_them() -> None:
    one, two, three = TRACE.jobs
    done = [
        LiveJob(one, submit_s=0.0, end_s=503.0, runs=(run(1.0, 503.0),)),
        LiveJob(two, submit_s=10.0, end_s=1513.0, runs=(run(1.0, None), run(5.0, None), run(20.0, 1513.0))),
        LiveJob(three, submit_s=20.0, end_s=None, runs=(run(21.0, 22.0),)),
    ]
    assert figures.live(done) == figures.Figures(avg_jct_s=1003.0, makespan_s=1513.0, preemptions=2)
    assert figures.lost(done) == 1
    assert [job.submit_s for job in figures.submitted(done).jobs] == [0.0, 10.0, 20.0]
    assert figures.launches_s(done) == (2.0,)


def test_a_job_that_is_told_late_to_end_has_worked_until_it_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scancel").write_text("#!/bin/sh\n")
    (tmp_path / "scancel").chmod(0o755)
    (tmp_path / "job-7.out").write_text("ready\n")
    submitted = {7: TraceJob(5400, 0.0, 1, 2.0, iterations=20, stages=StageTimes(0.04, 0.06, 0.0))}
    running = SimpleNamespace(job_id=7, state="RUNNING", gpu_indices=(("n1", (0,)),))
    client: Any = SimpleNamespace(jobs=lambda: (running,))
    progress = shared.Progress(tmp_path)
    for now_s in (100.0, 101.0, 105.0):
        monkeypatch.setattr(time, "monotonic", partial(float, now_s))
        progress.look(client, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, submitted)
    assert progress.worked_s == {5400: pytest.approx(2.0)}


LOG = """\
[2026-11-21T13:25:20.915] _slurm_rpc_submit_batch_job: JobId=1 InitPrio=1 usec=494
[2026-11-21T13:25:21.692] sched/backfill: _start_job: Started JobId=1 in main on n1
[2026-11-21T13:25:21.700] sched: Allocate JobId=2 NodeList=n[2-4] #CPUs=3 Partition=main
[2026-11-21T13:25:22.223] _job_complete: JobId=1 WEXITSTATUS 0
[2026-11-21T13:25:22.223] _job_complete: JobId=1 done
[2026-11-21T13:25:24.506] Requeuing JobId=2
[2026-11-21T13:25:25.000] sched: Allocate JobId=2 NodeList=n[1-3] #CPUs=3 Partition=main
[2026-11-21T13:25:26.500] _job_complete: JobId=2 done
"""


def test_slurmctlds_log_tells_the_runs_of_each_job() -> None:
    zero_s = datetime.fromisoformat("2026-11-21T13:25:21").timestamp()
    found = log.runs(LOG, zero_s)
    rounded = {
        job_id: [(round(r.start_s, 3), r.end_s and round(r.end_s, 3), r.is_backfilled, r.nodes) for r in runs]
        for job_id, runs in found.items()
    }
    assert rounded == {
        1: [(0.692, 1.223, True, "n1")],
        2: [(0.7, None, False, "n[2-4]"), (4.0, 5.5, False, "n[1-3]")],
    }


def test_a_job_counts_as_submitted_when_slurmctld_has_it() -> None:
    zero_s = datetime.fromisoformat("2026-11-21T13:25:20").timestamp()
    assert {job_id: round(at_s, 3) for job_id, at_s in log.submissions(LOG, zero_s).items()} == {1: 0.915}


def test_a_start_that_slurmctld_does_not_log_is_one_of_backfill() -> None:
    """As on Slurm 26.05; the second run was told."""
    text = (
        "[2026-11-21T19:38:21.556] _job_complete: JobId=2 done\n"
        "[2026-11-21T19:38:22.000] sched: Allocate JobId=2 NodeList=n1 #CPUs=1 Partition=main\n"
        "[2026-11-21T19:38:23.000] _job_complete: JobId=2 done\n"
    )
    first, second = log.runs(text, datetime.fromisoformat("2026-11-21T19:38:20").timestamp())[2]
    assert math.isnan(first.start_s)
    assert (first.is_backfilled, round(first.end_s or 0.0, 3)) == (True, 1.556)
    assert second == log.Run(2.0, 3.0, is_backfilled=False, nodes="n1")


def test_the_logs_tell_when_the_schedulers_looked() -> None:
    slurmctld = """\
[2026-11-21T13:25:21.250] debug:  sched/backfill: _attempt_backfill: beginning
[2026-11-21T13:25:21.251] debug:  sched/backfill: _attempt_backfill: 3 jobs to backfill
[2026-11-21T13:25:21.500] debug:  sched: Running job scheduler for full queue.
[2026-11-21T13:25:22.750] debug:  sched: Running job scheduler for default depth.
[2026-11-21T13:25:22.875] sched/backfill: _attempt_backfill: beginning
"""
    daemon = """\
2026-11-21 13:25:21,125 INFO explsched.daemon started policy="srsf" interval_s=1
2026-11-21 13:25:22,125 INFO explsched.controller pass jobs=3 starts=1 reservations=0 changes=2 failures=0
"""
    zero_s = datetime.fromisoformat("2026-11-21T13:25:20").timestamp()
    alone = PassTimes(policy_s=(1.25, 2.875), backfill_s=(1.25, 2.875), main_s=(1.5, 2.75))
    assert log.pass_times(slurmctld, "", zero_s) == alone
    assert log.pass_times(slurmctld, daemon, zero_s) == PassTimes((2.125,), alone.backfill_s, alone.main_s)
    assert figures.mean_gap_s(alone.main_s) == 1.25
    assert figures.mean_gap_s((1.0,)) is None


def test_the_simulator_looks_when_the_schedulers_did_and_pays_for_every_launch() -> None:
    how = Settings(1.0, backfill_interval_s=1.0, main_interval_s=1.0, pass_times=PassTimes(main_s=(100.25,)))
    found = figures.simulated(Trace.of(TRACE.jobs[:2]), "slurm", PolicyOptions(), how, (2.0,))
    # Job 1 starts at 100.0 by backfill; job 2 needs all nodes and starts when job 1 has ended, at 602.
    assert found == figures.Figures((502 + 402 + 1002) / 2, 602 + 1002, preemptions=0)


def test_error_is_signed() -> None:
    assert figures.error(90.0, 100.0) == pytest.approx(-0.1)


def arm(jct_s: float, makespan_s: float, simulated_jct_s: float, lost: int = 0) -> report.Arm:
    shown = figures.Figures(jct_s, makespan_s, 0)
    return report.Arm(shown, figures.Figures(simulated_jct_s, makespan_s * 1.02, 0), 0.5, {}, lost, (0.0, 1.0))


def test_a_run_reports_ratios_to_slurm_alone_and_the_larger_error() -> None:
    found = report.run(arm(90.0, 300.0, 90.0), arm(30.0, 310.0, 27.0, lost=1))
    assert found["jct_ratio"] == pytest.approx(3.0)
    assert found["makespan_ratio"] == pytest.approx(300 / 310)
    assert found["sim_error_jct"] == pytest.approx(-0.1)
    assert found["sim_error_makespan"] == pytest.approx(0.02)
    assert found["jobs_lost"] == 1


def test_several_runs_report_medians_the_worst_error_and_all_lost_jobs() -> None:
    ratios = [(2.0, 0.9, 0.05, 0), (3.0, 1.1, -0.08, 1), (2.5, 1.0, 0.01, 1)]
    runs = [
        {"jct_ratio": j, "makespan_ratio": m, "sim_error_jct": e, "sim_error_makespan": 0.0, "jobs_lost": lost}
        for j, m, e, lost in ratios
    ]
    found = report.summary({"jobs": 3}, runs)
    assert (found["jct_ratio"], found["jct_ratio_least"]) == (2.5, 2.0)
    assert (found["makespan_ratio"], found["makespan_ratio_least"]) == (1.0, 0.9)
    assert found["sim_error_jct"] == -0.08
    assert found["jobs_lost"] == 2
    assert found["jobs"] == 3
    assert found["runs"] == runs


def start_job(directory: Path, run_s: float) -> subprocess.Popen[bytes]:
    (directory / "saved").mkdir(exist_ok=True)
    argv = ["bash", str(Path(live.__file__).with_name("job.sh"))]
    argv += live.arguments(TraceJob(7, 0.0, 1, run_s), directory)
    environment = {
        **os.environ,
        "SLURM_JOB_ID": "7",
        "EXPLSCHED_SPOOL": str(directory),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    return subprocess.Popen(argv, env=environment)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def ask(process: subprocess.Popen[bytes]) -> None:
    """Send the checkpoint signal, once the job has its handler in place."""
    status = Path(f"/proc/{process.pid}/status")
    bit = 1 << (signal.SIGUSR1 - 1)
    until(lambda: bool(int(status.read_text().partition("SigCgt:")[2].split()[0], 16) & bit), "a handler")
    process.send_signal(signal.SIGUSR1)


def has(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


def test_a_job_saves_its_run_time_when_asked_and_goes_on_until_it_is_requeued(tmp_path: Path) -> None:
    with start_job(tmp_path, 600.0) as process:
        ask(process)
        until(lambda: has(tmp_path / "7.jsonl", '"checkpoint"'), "the checkpoint is reported")
        assert process.poll() is None
        process.terminate()
    assert 0 < int((tmp_path / "saved" / "7").read_text()) < 600_000_000


def test_a_requeued_job_does_only_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "7").write_text("1000000000")
    with start_job(tmp_path, 1000.0) as process:
        assert process.wait(60) == 0
    assert not (tmp_path / "7.jsonl").exists()


def test_a_job_that_was_asked_tells_that_it_has_ended(tmp_path: Path) -> None:
    with start_job(tmp_path, 1.0) as process:
        ask(process)
        assert process.wait(60) == 0
    assert '"end"' in (tmp_path / "7.jsonl").read_text()
