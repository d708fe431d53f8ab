"""A site's own history. The first text is what Slurm 22.05 printed for a private cluster of two nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulation.traces.formats import sacct
from simulation.traces.formats.sacct import read_history
from simulation.traces.formats.table import open_table
from simulation.traces.trace import Trace, TraceError
from tests.simulation.traces.formats.conftest import Writer

PRINTED = """\
JobID|JobIDRaw|User|Partition|Submit|Eligible|Start|End|ElapsedRaw|State|TimelimitRaw|AllocTRES|ReqTRES
1|1|ada|main|1795250509|1795250509|1795250512|1795250598|86|REQUEUED|10|billing=1,cpu=1,gres/gpu=2,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=2,mem=1000M,node=1
3|3|ada|main|1795250509|1795250509|1795250512|1795250515|3|REQUEUED|60|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
5|5|ada|main|1795250509|1795250509|1795250512|1795250515|3|CANCELLED by 0|60|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
7|7|ada|main|1795250509|1795250509|1795250523|1795250598|75|REQUEUED|60|billing=32,cpu=32,gres/gpu=16,mem=32000M,node=2|billing=2,cpu=2,gres/gpu=16,mem=2000M,node=2
8|8|ada|main|1795250509|1795250509|1795250526|1795250527|1|COMPLETED|60|billing=1,cpu=1,mem=1000M,node=1|billing=1,cpu=1,mem=1000M,node=1
9|9|ada|main|1795250509|1795250569|1795250569|1795250570|1|COMPLETED|60|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
10+0|10|ada|main|1795250509|1795250509|1795250518|1795250521|3|COMPLETED|3|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
10+1|11|ada|main|1795250509|1795250509|1795250518|1795250521|3|COMPLETED|3|billing=1,cpu=1,gres/gpu=2,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=2,mem=1000M,node=1
2_0|13|ada|main|1795250509|1795250509|1795250512|1795250514|2|COMPLETED|5|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
2_1|14|ada|main|1795250509|1795250514|1795250514|1795250516|2|COMPLETED|5|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
2_2|2|ada|main|1795250509|1795250517|1795250517|1795250519|2|COMPLETED|5|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
3|3|ada|main|1795250515|1795250598|1795250598|1795250606|8|CANCELLED by 0|60|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
1|1|ada|main|1795250598|1795250598|1795250598|1795250603|5|COMPLETED|10|billing=1,cpu=1,gres/gpu=2,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=2,mem=1000M,node=1
15|15|ada|main|1795250606|1795250606|1795250611|1795250613|2|RESIZING|60|billing=2,cpu=2,gres/gpu=2,mem=2000M,node=2|billing=2,cpu=2,gres/gpu=2,mem=2000M,node=2
16|16|ada|main|1795250606|1795250606|1795250611|1795250673|55|CANCELLED by 0|UNLIMITED|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1
18|18|ada|main|1795250606|1795250606|None|1795250665|0|CANCELLED by 0|60||billing=2,cpu=2,gres/gpu=16,mem=2000M,node=2
19_1|20|ada|main|1795250608|1795250609|1795250673|1795250676|3|CANCELLED by 0|60|billing=2,cpu=2,gres/gpu=16,mem=2000M,node=2|billing=2,cpu=2,gres/gpu=16,mem=2000M,node=2
19_2|21|ada|main|1795250608|1795250609|1795250676|Unknown|3|RUNNING|60|billing=2,cpu=2,gres/gpu=16,mem=2000M,node=2|billing=2,cpu=2,gres/gpu=16,mem=2000M,node=2
19_[3,5]|19|ada|main|1795250608|1795250609|Unknown|Unknown|0|PENDING|60||billing=2,cpu=2,gres/gpu=16,mem=2000M,node=2
15|15|ada|main|1795250613|1795250613|1795250611|1795250614|3|COMPLETED|60|billing=1,cpu=1,gres/gpu=1,mem=1000M,node=1|billing=2,cpu=2,gres/gpu=2,mem=2000M,node=1
"""  # noqa: E501  as Slurm printed it

HEADER = "JobID|Submit|Start|End|State|AllocTRES\n"


def reasons(trace: Trace) -> dict[int, str]:
    return {row.line: row.reason for row in trace.rejected}


def test_what_slurm_printed_is_read(file: Writer) -> None:
    trace = sacct.read(file(PRINTED))
    read = {job.job_id: (job.submit_s, job.gpus, job.run_s, job.time_limit_s) for job in trace.jobs}
    assert read == {
        1: (0, 2, 91, 600),  # requeued after its end: Slurm says that it ran until then
        2: (8, 1, 2, 300),  # the last task of the array has the array's own number
        3: (0, 1, 11, 3600),  # requeued while it ran: both runs
        5: (0, 1, 3, 3600),
        7: (0, 16, 75, 3600),  # requeued and not back: what it ran
        9: (60, 1, 1, 3600),  # --begin: it arrives when it is eligible
        10: (0, 3, 3, 180),  # two components are one gang
        13: (0, 1, 2, 300),
        14: (5, 1, 2, 300),
        15: (97, 2, 3, 3600),  # resized: 2 s on two GPUs, 1 s on one
        16: (97, 1, 55, None),  # 7 s suspended are not counted
        20: (100, 16, 3, 3600),
    }
    assert {(job.user, job.queue) for job in trace.jobs} == {("ada", "main")}
    assert reasons(trace) == {
        6: "AllocTRES: found no GPUs, accepted: jobs that held some (gres/gpu=1)",
        17: "Start: the job never ran (State CANCELLED), accepted: jobs that did",
        19: "State: found RUNNING, accepted: jobs that have ended",
        20: "State: found PENDING, accepted: jobs that have ended",
    }


def test_the_order_of_rows_does_not_matter(file: Writer) -> None:
    header, *rows = PRINTED.splitlines(keepends=True)
    assert sacct.read(file(header + "".join(reversed(rows)))).jobs == sacct.read(file(PRINTED)).jobs


def test_a_requeued_job_may_run_for_all_its_runs_in_one(file: Writer) -> None:
    """Slurm's limit, here of a day, is that of each run."""
    hours = "JobIDRaw|Submit|Start|End|ElapsedRaw|State|TimelimitRaw|AllocTRES\n"
    rows = "5|0|0|72000|72000|REQUEUED|1440|gres/gpu=1\n5|72000|72000|144000|72000|COMPLETED|1440|gres/gpu=1\n"
    (job,) = sacct.read(file(hours + rows)).jobs
    assert (job.run_s, job.time_limit_s) == (144_000, 144_000)


def test_history_keeps_the_runs(file: Writer) -> None:
    with open_table(file(PRINTED)) as table:
        jobs = read_history(table).jobs
    requeued = next(job for job in jobs if job.job_id == 3)
    assert [(run.start_s, run.end_s, run.state) for run in requeued.runs] == [
        (1795250512, 1795250515, "REQUEUED"),
        (1795250598, 1795250606, "CANCELLED"),
    ]
    assert (requeued.submit_s, requeued.state) == (1795250509, "CANCELLED")


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=8,gres/gpu=4,node=1", 4),
        ("gres/gpu:a100=4", 4),
        ("gres/gpu:a100=4,gres/gpu:v100=2", 6),
        ("gres/gpu:a100=4,gres/gpu=4", 4),
        ("gres/gpu=4,gres/gpu:a100=3,gres/gpu:1g.5gb=1", 4),
        ("gres/gpu=4,gres/gpumem=40G,gres/gpuutil=10,gres/shard=3", 4),
    ],
)
def test_gpus_are_counted_once(file: Writer, tres: str, gpus: int) -> None:
    (job,) = sacct.read(file(HEADER + f"1|0|1|2|COMPLETED|{tres}\n")).jobs
    assert job.gpus == gpus


def test_a_job_has_the_types_of_all_its_components(file: Writer) -> None:
    rows = "5+0|0|1|9|COMPLETED|gres/gpu=2,gres/gpu:h100=2\n5+1|0|1|9|COMPLETED|gres/gpu:a100=4,gres/gpu:v100=0\n"
    (job,) = sacct.read(file(HEADER + rows)).jobs
    assert job.recorded is not None
    assert job.recorded.gpu_types == ("a100", "h100")


def test_without_allocated_tres_the_request_counts(file: Writer) -> None:
    header = "JobID|Submit|Start|End|State|AllocTRES|ReqTRES\n"
    (job,) = sacct.read(file(header + "1|0|1|2|COMPLETED|cpu=1|cpu=1,gres/gpu=2\n")).jobs
    assert job.gpus == 2
    (job,) = sacct.read(file("JobIDRaw|Submit|Start|End|State|ReqTRES\n1|0|1|2|COMPLETED|gres/gpu=2\n")).jobs
    assert job.gpus == 2


@pytest.mark.parametrize(
    ("header", "cell", "limit_s"),
    [
        ("TimelimitRaw", "90", 5400),
        ("TimelimitRaw", "UNLIMITED", None),
        ("TimelimitRaw", "Partition_Limit", None),
        ("TimelimitRaw", "", None),
        ("Timelimit", "01:30:00", 5400),
        ("Timelimit", "2-00:00:30", 172_830),
        ("Timelimit", "30:00", 1800),
        ("Timelimit", "UNLIMITED", None),
        ("Timelimit", "Partition_Limit", None),
    ],
)
def test_time_limits(file: Writer, header: str, cell: str, limit_s: float | None) -> None:
    text = HEADER.replace("AllocTRES", f"AllocTRES|{header}") + f"1|0|1|2|COMPLETED|gres/gpu=1|{cell}\n"
    (job,) = sacct.read(file(text)).jobs
    assert job.time_limit_s == limit_s


def test_times_may_be_as_slurm_prints_them_by_default(file: Writer) -> None:
    rows = (
        "1|2026-11-21T08:41:49|2026-11-21T08:41:52|2026-11-22T08:41:52|COMPLETED|gres/gpu=1\n"
        "2|2026-11-21T08:42:49|2026-11-21T08:42:50|2026-11-21T08:42:52|COMPLETED|gres/gpu=1\n"
    )
    assert [(job.submit_s, job.run_s) for job in sacct.read(file(HEADER + rows)).jobs] == [(0, 86400), (60, 2)]


def test_runs_over_the_end_of_summer_time_keep_their_length(file: Writer) -> None:
    """In Berlin the hour from 2:00 came twice on 2025-10-26; the third run ends in the second of them."""
    header = HEADER.replace("State", "ElapsedRaw|State")
    rows = (
        "1|2025-10-25T10:00:00|2025-10-25T10:00:00|2025-10-27T10:00:00|176400|COMPLETED|gres/gpu=1\n"
        "2|2025-10-27T10:00:00|2025-10-27T10:00:00|2025-10-27T10:01:00|60|COMPLETED|gres/gpu=1\n"
        "3|2025-10-26T02:30:00|2025-10-26T02:30:00|2025-10-26T02:10:00|2400|COMPLETED|gres/gpu=1\n"
        "4|2025-10-25T10:00:00|2025-10-25T10:00:00|2025-10-27T10:00:00|180000|COMPLETED|gres/gpu=1\n"
        "5|2025-10-26T02:30:00|2025-10-26T02:30:00|2025-10-26T02:10:00|9000|COMPLETED|gres/gpu=1\n"
    )
    trace = sacct.read(file(header + rows))
    assert {job.job_id: job.run_s for job in trace.jobs} == {1: 176_400, 2: 60, 3: 2400}
    hint = r" \(local times when summer time began or ended\? Print them with SLURM_TIME_FORMAT=%s\)"
    for line, words in ((5, "ElapsedRaw: found 180000 s, .* to End"), (6, "End: lies 1200 s before Start")):
        assert re.fullmatch(words + hint, reasons(trace)[line])


def test_elapsed_leaves_suspension_out_and_may_be_a_duration(file: Writer) -> None:
    text = HEADER.replace("State", "Elapsed|State") + "1|0|10|110|00:01:15|COMPLETED|gres/gpu=1\n"
    assert sacct.read(file(text)).jobs[0].run_s == 75


def test_steps_are_no_jobs_and_no_faults(file: Writer) -> None:
    rows = (
        "12|0|1|2|COMPLETED|gres/gpu=1\n12.batch|1|1|2|COMPLETED|gres/gpu=1\n12.extern|1|1|2|COMPLETED|\n"
        "12.0|1|1|2|FAILED|gres/gpu=1\n13_4|0|1|2|COMPLETED|gres/gpu=1\n13_4.batch|1|1|2|COMPLETED|gres/gpu=1\n"
        "14+0|0|1|2|COMPLETED|gres/gpu=1\n14+1.0|1|1|2|COMPLETED|gres/gpu=1\n"
    )
    trace = sacct.read(file(HEADER + rows))
    assert len(trace.jobs) == 3
    assert trace.rejected == ()


def test_tasks_without_a_number_of_their_own_get_one(file: Writer) -> None:
    rows = "".join(f"{job_id}|0|1|2|COMPLETED|gres/gpu=1\n" for job_id in ("7_1", "7_2", "9", "7"))
    assert sorted(job.job_id for job in sacct.read(file(HEADER + rows)).jobs) == [7, 9, 10, 11]


def test_an_id_given_again_is_another_job(file: Writer) -> None:
    rows = "5|0|1|2|COMPLETED|gres/gpu=1\n5|1000|1001|1005|COMPLETED|gres/gpu=2\n"
    trace = sacct.read(file(HEADER + rows))
    assert [(job.job_id, job.gpus, job.run_s) for job in trace.jobs] == [(5, 1, 1), (6, 2, 4)]


def test_files_of_neighbouring_months_may_be_joined(file: Writer) -> None:
    rows = (
        "5|0|10|Unknown|RUNNING|gres/gpu=1\n6|0|1|2|COMPLETED|gres/gpu=1\n"
        + HEADER
        + "5|0|10|50|COMPLETED|gres/gpu=1\n6|0|1|2|COMPLETED|gres/gpu=1\n"
    )
    trace = sacct.read(file(HEADER + rows))
    assert [(job.job_id, job.run_s) for job in trace.jobs] == [(5, 40), (6, 1)]
    assert reasons(trace) == {
        2: "JobID: this run is on line 5 as well",
        6: "JobID: this run is on line 3 as well",
    }


@pytest.mark.parametrize("more", ["AllocTRES|TimelimitRaw|JobName", "TimelimitRaw|NNodes|AllocTRES|JobName"])
def test_a_joined_file_of_other_columns_is_not_read_by_the_first_header(file: Writer, more: str) -> None:
    """The last column is free text, so that one column more would not show in the number of cells."""
    first = "JobID|Submit|Start|End|State|TimelimitRaw|AllocTRES|JobName\n1|0|1|2|COMPLETED|90|gres/gpu=1|train\n"
    path = file(first + f"JobID|Submit|Start|End|State|{more}\n2|0|1|2|COMPLETED|64|1440|gres/gpu=4|train\n")
    with pytest.raises(TraceError, match="line 3: a header of other columns than that of line 1"):
        sacct.read(path)


def test_local_times_and_seconds_since_1970_do_not_join(file: Writer) -> None:
    """They are hours apart, and so would neighbouring jobs be."""
    local = "2|2026-01-02T00:00:00|2026-01-02T00:00:00|2026-01-03T00:00:00|COMPLETED|gres/gpu=1\n"
    with pytest.raises(TraceError, match="line 3 has local times, line 2 seconds since 1970"):
        sacct.read(file(f"{HEADER}1|1767225600|1767225600|1767312000|COMPLETED|gres/gpu=1\n{local}"))


def test_a_job_that_is_cancelled_while_it_waits_again_ends_then(file: Writer) -> None:
    """Slurm 22.05 tells it so if the nodes had been cleaned up, else it leaves the job REQUEUED for good."""
    rows = (
        "5|0|10|50|REQUEUED|gres/gpu=1\n5|50|None|90|CANCELLED by 0|\n6|0|10|50|REQUEUED|gres/gpu=1\n"
        "7|0|10|50|RESIZING|gres/gpu=2\n7|50|10|Unknown|RUNNING|gres/gpu=1\n"
    )
    with open_table(file(HEADER + rows)) as table:
        past = read_history(table)
    assert [(job.job_id, job.state, job.ran_s, job.end_s, job.requeues) for job in past.jobs] == [
        (5, "CANCELLED", 40, 90, 1),
        (6, "REQUEUED", 40, 50, 1),
    ]
    assert [row.line for row in past.rejected] == [6]


def test_a_gang_has_not_ended_before_all_its_components_have(file: Writer) -> None:
    rows = "5+0|0|1|2|COMPLETED|gres/gpu=1\n5+1|0|1|Unknown|RUNNING|gres/gpu=1\n6|0|1|2|COMPLETED|gres/gpu=1\n"
    assert [job.job_id for job in sacct.read(file(HEADER + rows)).jobs] == [6]


def test_a_component_without_gpus_is_no_fault(file: Writer) -> None:
    rows = "5+0|0|1|9|COMPLETED|cpu=4\n5+1|0|1|9|COMPLETED|gres/gpu=4\n"
    trace = sacct.read(file(HEADER + rows))
    assert [(job.job_id, job.gpus, job.run_s) for job in trace.jobs] == [(5, 4, 8)]
    assert trace.rejected == ()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a|0|1|2|COMPLETED|gres/gpu=1", "JobID: found 'a'"),
        ("2|Unknown|1|2|COMPLETED|gres/gpu=1", "Submit: found 'Unknown', accepted: times"),
        ("2|0|5|2|COMPLETED|gres/gpu=1", "End: lies 3 s before Start"),
        ("2|0|21 Nov|2|COMPLETED|gres/gpu=1", "Start: found '21 Nov', accepted: times such as"),
        ("2|0|1|-2|COMPLETED|gres/gpu=1", "End: found '-2'"),
        ("2|0|1|2|completed|gres/gpu=1", "State: found 'completed'"),
        ("2|0|1|2|COMPLETED|gres/gpu=1K", "AllocTRES: found 'gres/gpu=1K', .*--noconvert"),
        ("2|0|1|2|COMPLETED|gres/gpu=2000000", "AllocTRES: found 'gres/gpu=2000000'"),
        ("2|0|1|1|COMPLETED|gres/gpu=1", "ElapsedRaw: the job ran for less than a second"),
        ("2|0|1|2|COMPLETED|gres/shard=4", "AllocTRES: found no GPUs"),
        ("2|0|1|2|COMPLETED|gres/gpu=1|x", "row: found 7 fields, accepted: 6"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(file: Writer, row: str, words: str) -> None:
    trace = sacct.read(file(HEADER + "1|0|1|2|COMPLETED|gres/gpu=1\n" + row + "\n"))
    assert len(trace.jobs) == 1
    with pytest.raises(TraceError, match=words):
        raise TraceError(reasons(trace)[3])


def test_an_elapsed_time_longer_than_the_run_is_named(file: Writer) -> None:
    text = HEADER.replace("State", "ElapsedRaw|State") + "1|0|10|20|99|COMPLETED|gres/gpu=1\n"
    with pytest.raises(TraceError, match="ElapsedRaw: found 99 s, accepted: up to 10 s"):
        sacct.read(file(text))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("Submit|Start|End|State|AllocTRES", "lacks JobID or JobIDRaw"),
        ("JobID|Submit|Start|End|State", "lacks AllocTRES or ReqTRES"),
        ("JobID|Submit|Start|State|AllocTRES", "lacks End"),
    ],
)
def test_a_missing_column_is_named(file: Writer, header: str, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        sacct.read(file(header + "\n"))


def test_the_documentation_has_the_command_line() -> None:
    page = Path(__file__).parents[4] / "docs" / "simulation.md"
    assert sacct.COMMAND in page.read_text(encoding="utf-8")


def test_names_tell_similar_jobs_apart_whatever_is_in_them(file: Writer) -> None:
    row = "|0|0|60|COMPLETED|gres/gpu=1|"
    names = ("train", "a|b", '"', "", "x" * 300, "tab\there")
    trace = sacct.read(
        file(HEADER.strip() + "|JobName\n" + "".join(f"{n}{row}{name}\n" for n, name in enumerate(names, 1)))
    )
    assert trace.rejected == ()
    assert [job.model for job in trace.jobs] == ["train", "a|b", '"', "", "x" * 256, "tab?here"]
