"""A site's history measured with the same figures as a simulation."""

from pathlib import Path

import pytest

from simulation.results import history
from simulation.results.metrics import measure
from simulation.results.outcome import Ending, Usage
from simulation.traces.trace import ClusterShape, TraceError

_HEADER = "JobID|JobIDRaw|User|Partition|Submit|Eligible|Start|End|ElapsedRaw|State|TimelimitRaw|AllocTRES|ReqTRES"


def row(job_id: int, submit: int, start: int, end: int, gpus: int, state: str = "COMPLETED") -> str:
    """A run that was eligible 10 s after its submission."""
    times = f"{submit}|{submit + 10}|{start}|{end}|{end - start}"
    return f"{job_id}|{job_id}|ada|main|{times}|{state}|60|billing=1,gres/gpu={gpus}|gres/gpu={gpus}"


def file(directory: Path, *rows: str) -> Path:
    path = directory / "history.txt"
    path.write_text("\n".join((_HEADER, *rows)) + "\n")
    return path


def test_a_history_by_hand(tmp_path: Path) -> None:
    # Job 7 waits 0 s, runs 100 s on 2 GPUs; job 8 waits from 1020 to 1110, runs 50 s on 4 GPUs and runs out of time.
    rows = row(8, 1010, 1110, 1160, 4, "TIMEOUT"), row(7, 1000, 1010, 1110, 2)
    past = history.read(file(tmp_path, *rows), ClusterShape(2, 4))
    assert past.peak_gpus == 4
    assert [(job.job_id, job.submit_s, job.start_s, job.end_s) for job in past.outcome.jobs] == [
        (7, 0, 0, 100),
        (8, 10, 100, 150),
    ]
    assert past.outcome.usage == (
        Usage(0, 2, None, 1, 0),
        Usage(10, 2, None, 1, 1),
        Usage(100, 4, None, 1, 0),
        Usage(150, 0, None, 0, 0),
    )
    found = measure(past.outcome)
    assert (found.jobs, found.completed) == (2, 1)
    assert (found.avg_jct_s, found.makespan_s, found.avg_queue_s) == (120, 150, 45)
    assert found.gpu_utilisation == pytest.approx((2 * 100 + 4 * 50) / (8 * 150))
    assert found.fragmentation is None
    assert found.wasted_gpu_h == pytest.approx(200 / 3600)


def test_work_that_was_lost_stands_in_the_admin_comment(tmp_path: Path) -> None:
    word = "explsched-preemption:since=1000&n=0&lost=0&p=0,1110,2,40,why"
    rows = [row(7, 1000, 1010, 1110, 2, "REQUEUED"), row(7, 1110, 1200, 1300, 2)]
    path = tmp_path / "history.txt"
    path.write_text("\n".join((f"{_HEADER}|AdminComment", *(f"{line}|{word}" for line in rows))) + "\n")
    found = measure(history.read(path).outcome)
    assert found.lost_gpu_h == pytest.approx(40 / 3600)
    assert found.useful_gpu_h == pytest.approx((2 * 200 - 40) / 3600)
    path.write_text(f"{_HEADER}|AdminComment\n{rows[1]}|explsched-preemption:x\n{row(8, 1000, 1010, 1110, 2)}|\n")
    assert "is not a record of preemptions" in history.read(path).rejected[0].reason


def test_requeues_are_preemptions_and_the_job_waits_again(tmp_path: Path) -> None:
    path = file(tmp_path, row(7, 1000, 1010, 1110, 2, "PREEMPTED"), row(7, 1110, 1200, 1300, 2))
    past = history.read(path)
    (job,) = past.outcome.jobs
    assert (job.submit_s, job.start_s, job.end_s, job.held_s, job.preemptions) == (0, 0, 290, 200, 1)
    assert [(use.time_s, use.busy_gpus, use.pending_jobs) for use in past.outcome.usage] == [
        (0, 2, 0),
        (100, 0, 1),
        (190, 2, 0),
        (290, 0, 0),
    ]


def test_jobs_that_have_not_ended_count_in_a_window(tmp_path: Path) -> None:
    """When sacct was asked, at 2000, job 8 had been requeued and ran, and job 9 waited."""
    path = file(
        tmp_path,
        row(7, 1000, 1010, 1110, 2),
        row(8, 900, 910, 1010, 4, "REQUEUED"),
        "8|8|ada|main|1010|1010|1100|Unknown|900|RUNNING|60|gres/gpu=4|gres/gpu=4",
        "9|9|ada|main|1010|1010|Unknown|Unknown|0|PENDING|60||gres/gpu=4",
    )
    cluster = ClusterShape(1, 8)
    for since_s, until_s, held_gpu_s in (
        (910, 2000, 2 * 100 + 4 * 100 + 4 * 900),
        (1200, 1300, 4 * 100),
        (1200, None, 4 * 800),
        (None, None, 2 * 100),
    ):
        past = history.read(path, cluster, since_s, until_s)
        assert measure(past.outcome).held_gpu_h == pytest.approx(held_gpu_s / 3600)
        assert ([job.job_id for job in past.outcome.jobs], len(past.rejected)) == ([7], 2)
    with pytest.raises(TraceError, match="held 6 GPUs at once, the cluster has 4.*runawayjobs"):
        history.read(path, ClusterShape(1, 4), 910, 2000)


def test_a_job_that_is_cancelled_while_it_waits_again_waits_until_then(tmp_path: Path) -> None:
    waited = row(7, 1000, 1010, 1110, 2, "REQUEUED"), row(7, 1110, 0, 1200, 2, "CANCELLED by 0")
    never_told = row(8, 1000, 1010, 1110, 1, "REQUEUED")
    past = history.read(file(tmp_path, waited[0], waited[1].replace("|0|1200|1200|", "|None|1200|0|"), never_told))
    assert [(job.end_s, job.held_s, job.preemptions, job.ending) for job in past.outcome.jobs] == [
        (190, 100, 1, Ending.ABANDONED),
        (100, 100, 1, Ending.ABANDONED),
    ]
    assert [(use.time_s, use.busy_gpus, use.running_jobs, use.pending_jobs) for use in past.outcome.usage] == [
        (0, 3, 2, 0),
        (100, 0, 0, 1),
        (190, 0, 0, 0),
    ]


def test_a_suspended_job_holds_its_gpus_and_does_no_work(tmp_path: Path) -> None:
    """As sreport counts GPUs; the job's own time is that of its work."""
    past = history.read(file(tmp_path, row(7, 1000, 1010, 1110, 2).replace("|100|", "|60|")))
    (job,) = past.outcome.jobs
    assert (job.run_s, job.held_s, job.spent_gpu_s) == (60, 100, 200)
    found = measure(past.outcome)
    assert (found.held_gpu_h, found.useful_gpu_h) == pytest.approx((200 / 3600, 120 / 3600))


def test_each_run_counts_with_its_own_gpus(tmp_path: Path) -> None:
    """An elastic job had 8 GPUs for an hour, then one; another gave back three of its four after an hour."""
    elastic = row(7, 1000, 1000, 4600, 8, "REQUEUED"), row(7, 4600, 4600, 8200, 1)
    smaller = row(8, 1000, 1000, 4600, 4, "RESIZING"), row(8, 4600, 4600, 8200, 1)
    past = history.read(file(tmp_path, *elastic, *smaller))
    assert [(job.spent_gpu_s / 3600, job.run_s, job.preemptions) for job in past.outcome.jobs] == [
        (9, 4050, 1),
        (5, 4500, 0),
    ]
    found = measure(past.outcome)
    assert (found.held_gpu_h, found.useful_gpu_h, found.wasted_gpu_h) == (14, 14, 0)


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        ("COMPLETED", Ending.COMPLETED),
        ("TIMEOUT", Ending.TIME_LIMIT),
        ("DEADLINE", Ending.TIME_LIMIT),
        ("CANCELLED by 1000", Ending.ABANDONED),
        ("FAILED", Ending.FAILED),
        ("OUT_OF_MEMORY", Ending.FAILED),
        ("NODE_FAIL", Ending.FAILED),
    ],
)
def test_how_jobs_ended(state: str, ending: Ending, tmp_path: Path) -> None:
    (job,) = history.read(file(tmp_path, row(7, 1000, 1010, 1110, 2, state))).outcome.jobs
    assert job.ending is ending


def test_without_a_cluster_the_peak_is_its_capacity(tmp_path: Path) -> None:
    rows = row(7, 1000, 1010, 1110, 3), row(8, 1000, 1060, 1110, 2)
    past = history.read(file(tmp_path, *rows))
    assert (past.peak_gpus, past.outcome.cluster.gpus) == (5, 5)
    assert measure(past.outcome).gpu_utilisation == pytest.approx((300 + 100) / 500)


def test_a_cluster_that_is_too_small_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"history\.txt: jobs held 5 GPUs at once, the cluster has 4$"):
        history.read(file(tmp_path, row(7, 1000, 1010, 1110, 5)), ClusterShape(1, 4))


def test_where_the_hour_that_comes_twice_overlaps_local_times_are_the_cause_named(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    runs = ("02:00:00|2025-10-26T02:50:00|3000", "02:00:00|2025-10-26T02:50:00|3000")
    rows = (f"{n}|2025-10-26T02:00:00|2025-10-26T{run}|COMPLETED|gres/gpu=4" for n, run in enumerate(runs, 1))
    path.write_text("\n".join(("JobID|Submit|Start|End|ElapsedRaw|State|AllocTRES", *rows)) + "\n")
    with pytest.raises(TraceError, match=r"jobs held 8 GPUs at once, the cluster has 4 \(local times .*=%s\)$"):
        history.read(path, ClusterShape(1, 4))


def test_unusable_rows_are_told_by_line(tmp_path: Path) -> None:
    rows = row(7, 1000, 1010, 1110, 1), row(8, 1000, 1010, 1110, 0), "nonsense"
    past = history.read(file(tmp_path, *rows))
    assert [rejected.line for rejected in past.rejected] == [3, 4]
    with pytest.raises(TraceError, match="no row can be used: line 2: .*no GPUs"):
        history.read(file(tmp_path, row(8, 1000, 1010, 1110, 0)))


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match="lacks Submit, Start, End, State"):
        history.read(path)
