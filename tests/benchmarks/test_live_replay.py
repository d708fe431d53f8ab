"""The parts of the live replay that need no cluster, on jobs whose numbers can be worked out by hand."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.live_replay import figures, live, report
from benchmarks.live_replay.live import LiveJob
from benchmarks.live_replay.workload import compressed, sbatch_options
from sched_policy.options import PolicyOptions
from sched_policy.simulator.settings import Settings
from sched_policy.simulator.trace import Trace, TraceJob

TRACE = Trace.of([TraceJob(1, 100.0, 8, 500.0), TraceJob(2, 200.0, 32, 1000.0), TraceJob(3, 300.0, 1, 10.0)])


def test_arrivals_and_run_times_are_divided_by_the_same_factor() -> None:
    jobs = compressed(TRACE, 2, 10.0, seed=1).jobs
    assert [(j.job_id, j.submit_s, j.run_s) for j in jobs] == [(1, 0.0, 50.0), (2, 10.0, 100.0)]


def test_a_second_of_run_time_is_declared_as_one_minute_or_up_to_ten() -> None:
    for each in compressed(TRACE, 3, 10.0, seed=1).jobs:
        assert each.time_limit_s is not None
        assert each.time_limit_s % 60 == 0
        assert 1.2 * each.run_s <= each.time_limit_s / 60 <= 10 * each.run_s + 1


def test_a_large_gang_asks_for_whole_nodes() -> None:
    small, large, _ = compressed(TRACE, 3, 10.0, seed=1).jobs
    assert {"--nodes=1", "--gpus-per-node=8"} <= set(sbatch_options(small))
    assert {"--nodes=4", "--gpus-per-node=8"} <= set(sbatch_options(large))


def test_live_figures_leave_out_lost_jobs_and_count_them() -> None:
    one, two, three = TRACE.jobs
    done = [
        LiveJob(one, submit_s=0.0, start_s=1.0, end_s=503.0, restarts=0),
        LiveJob(two, submit_s=10.0, start_s=20.0, end_s=1513.0, restarts=2),
        LiveJob(three, submit_s=20.0, start_s=21.0, end_s=None, restarts=0),
    ]
    assert figures.live(done) == figures.Figures(avg_jct_s=1003.0, makespan_s=1513.0, preemptions=2)
    assert figures.lost(done) == 1
    assert [job.submit_s for job in figures.submitted(done).jobs] == [0.0, 10.0, 20.0]
    assert figures.launch_s(done) == 2.0


def test_slurms_cycle_is_the_time_from_start_to_start_of_brief_jobs_on_a_node() -> None:
    def brief(node: str, start_s: float, run_s: float = 0.1, submit_s: float = 0.0) -> LiveJob:
        return LiveJob(TraceJob(1, 0.0, 8, run_s), submit_s, start_s, start_s + run_s, 0, node)

    busy = [brief("n1", float(start_s)) for start_s in (0, 1, 1, 2, 3, 4, 4, 5, 6, 6, 7)]
    assert figures.cycle_s(busy, 1.0) == pytest.approx(0.7)
    other = [brief("n2", 0.0, run_s=5.0), brief("n2", 6.0), brief("n2", 60.0), brief("n2", 62.0, submit_s=61.0)]
    assert figures.cycle_s([*busy, *other], 1.0) == pytest.approx(0.7)  # work, a node kept free, and an empty queue
    assert figures.cycle_s(busy[:5], 1.0) == 1.0


def test_the_simulator_pays_for_every_launch() -> None:
    found = figures.simulated(Trace.of(TRACE.jobs[:1]), "slurm", PolicyOptions(), Settings(interval_s=1.0), 2.0)
    assert found == figures.Figures(avg_jct_s=502.0, makespan_s=602.0, preemptions=0)


def test_error_is_signed() -> None:
    assert figures.error(90.0, 100.0) == pytest.approx(-0.1)


def arm(jct_s: float, makespan_s: float, simulated_jct_s: float, lost: int = 0) -> report.Arm:
    shown = figures.Figures(jct_s, makespan_s, 0)
    return report.Arm(shown, figures.Figures(simulated_jct_s, makespan_s * 1.02, 0), 0.5, 1.0, lost, (0.0, 1.0))


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
