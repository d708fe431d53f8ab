"""How changes reach Slurm's commands, and how their complaints come back: with commands that only pretend."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from explsched.errors import SlurmUnreachableError
from slurm_plugin.client import batch
from slurm_plugin.client.changes import (
    AttachReservation,
    CancelJob,
    Change,
    ChangeFailure,
    CreateReservation,
    NotNow,
    RequeueJob,
    SetAdminComment,
    SetSiteFactor,
    SignalJob,
    StartAtOnce,
    TargetJob,
    Unanswered,
)
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.pyslurm_ import PyslurmClient
from slurm_plugin.client.records import SlurmNode
from slurm_plugin.client.writer import Writer

SCONTROL = """\
case "$1" in
  -V) echo slurm-wlm 99.01.1; exit ;;
  ?*) printf '%s\\n' "alone $*" >> {log}; echo "slurm_update error: refused" >&2; exit 1 ;;
esac
while read -r line; do
  printf '%s\\n' "$line" >> {log}
  case "$line" in
    explsched-*) echo "invalid keyword: $line" >&2 ;;
    *job=2\\ *) echo "Invalid job id specified for job 2" >&2 ;;
  esac
done
"""
SCANCEL = """\
echo "scancel $*" >> {log}
for word; do
  case "$word" in
    -* | 80) ;;
    *) echo "scancel: Signal 10 to batch job $word" >&2 ;;
  esac
done
"""
"""Job 80 is suspended."""
DELIMITER = 'for word; do case "$word" in --delimiter=*) mark=${word#*=} ;; esac; done'
"""What ends each field of sacct's."""
AWAITED = "Job update not available right now, the DB index is being set, try again in a bit"
FACTORS = [SetSiteFactor(1, 30), SetSiteFactor(2, 20), SetSiteFactor(3, 10)]


def tool(directory: Path, name: str, body: str) -> str:
    (directory / name).write_text(f"#!/bin/sh\n{body}\n")
    (directory / name).chmod(0o755)
    return str(directory / name)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands were told, a line each. Their release is one for which we have no program."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    tool(tmp_path, "scontrol", SCONTROL.format(log=tmp_path / "log"))
    tool(tmp_path, "scancel", SCANCEL.format(log=tmp_path / "log"))
    return tmp_path / "log"


def test_signals_go_to_batch_scripts_that_run_and_cancels_to_jobs(log: Path) -> None:
    """For a job that no longer runs scancel would retry for a minute."""
    changes = [SignalJob(7, "USR1"), SignalJob(8, "USR1"), SignalJob(9, "USR2"), CancelJob(10)]
    assert CliClient().apply(changes) == ()
    assert log.read_text().splitlines() == [
        "scancel --verbose --signal=USR1 --batch --state=RUNNING 7 8",
        "scancel --verbose --signal=USR2 --batch --state=RUNNING 9",
        "scancel --verbose 10",
    ]


def test_a_signal_that_is_refused_is_told_by_job(log: Path, tmp_path: Path) -> None:
    tool(tmp_path, "scancel", "echo 'scancel: error: Kill job error on job id 8: Access denied' >&2")
    refused = "error: Kill job error on job id 8: Access denied"
    assert CliClient().apply([CancelJob(8), CancelJob(80)]) == (ChangeFailure(CancelJob(8), refused),)


def test_a_signal_that_was_sent_to_nobody_is_told_by_job(log: Path) -> None:
    """scancel leaves out a suspended job without a word, and succeeds."""
    signals = [SignalJob(8, "USR1"), SignalJob(80, "USR1")]
    assert [failure.change for failure in CliClient().apply([*signals, CancelJob(80)])] == signals[1:]


def test_a_signal_of_which_no_answer_came_is_not_known(log: Path, tmp_path: Path) -> None:
    tool(tmp_path, "scancel", "echo 'scancel: error: Connection refused' >&2")
    with ThreadPoolExecutor(1) as threads:
        (failed,) = Writer(30.0, dict(os.environ), {8: "7_1"}, threads).apply([SignalJob(8, "USR1")], None)
    assert failed == Unanswered(SignalJob(8, "USR1"), "not known: scancel: scancel: error: Connection refused")


def test_of_site_factors_that_were_refused_together_the_one_is_found(log: Path) -> None:
    requeue = RequeueJob(9)
    failure = ChangeFailure(FACTORS[1], "Invalid job id specified for job 2")
    assert CliClient().apply([*FACTORS, requeue]) == (failure,)
    told = [line for line in log.read_text().splitlines() if not line.startswith("explsched-")]
    assert told.count("u job=1 sitef=30") == 2  # once with the others, once alone
    assert told.count("requeue Incomplete 9") == 1  # what may not be given twice is not


def test_what_a_scontrol_was_not_given_before_it_was_killed_is_not_refused(log: Path, tmp_path: Path) -> None:
    tool(tmp_path, "scontrol", 'read -r line; read -r mark; echo "invalid keyword: $mark" >&2; kill -9 $$')
    failed = CliClient().apply([RequeueJob(1), RequeueJob(2)])
    assert failed == (Unanswered(RequeueJob(2), "not known: scontrol ended before it came to this"),)


@pytest.fixture
def too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands print what they print, and are still there when their time is over."""
    run = subprocess.run

    def killed(argv: list[str], **how: Any) -> None:
        done = run(argv, **how)
        raise subprocess.TimeoutExpired(argv, 30.0, done.stdout, done.stderr)

    monkeypatch.setattr("slurm_plugin.client.process.subprocess.run", killed)


def test_what_a_scontrol_has_done_before_its_time_was_over_is_done(log: Path, tmp_path: Path, too_late: None) -> None:
    """Slurm takes 5 s to refuse a change of a job of which it awaits the database's record."""
    tool(
        tmp_path,
        "scontrol",
        f'read -r line; read -r mark; echo "{AWAITED} for job 1" >&2; echo "invalid keyword: $mark" >&2;'
        'read -r line; read -r mark; echo "invalid keyword: $mark" >&2',
    )
    starts = [StartAtOnce(1), StartAtOnce(2), StartAtOnce(3)]
    assert CliClient().apply(starts) == (
        NotNow(starts[0], f"{AWAITED} for job 1"),
        Unanswered(starts[2], "not known: scontrol ended before it came to this"),
    )
    tool(tmp_path, "scontrol", "cat > /dev/null")
    with pytest.raises(SlurmUnreachableError, match="no answer from slurmctld within 30 s"):
        CliClient().apply(starts)


def test_site_factors_that_slurm_takes_too_slowly_together_are_written_one_by_one(
    log: Path, tmp_path: Path, too_late: None
) -> None:
    """Six jobs of which Slurm awaits the database's record, 5 s each, are more than scontrol has time for."""
    tool(
        tmp_path,
        "scontrol",
        f"""\
while read -r line; do
  case "$line" in
    explsched-*) echo "invalid keyword: $line" >&2 ;;
    *job=2\\ *)
      echo "{AWAITED} for job 2" >&2
      [ -e {tmp_path}/slow ] || {{ : > {tmp_path}/slow; exit; }} ;;
  esac
done""",
    )
    delay = StartAtOnce(4)
    with ThreadPoolExecutor(1) as threads:
        failed = Writer(30.0, dict(os.environ), {}, threads).apply([*FACTORS, delay], None)
    assert failed == (
        Unanswered(delay, "not known: scontrol ended before it came to this"),
        NotNow(FACTORS[1], f"{AWAITED} for job 2"),
    )


@pytest.mark.parametrize(
    ("accounting", "enforced", "kind"),
    [
        ("accounting_storage/slurmdbd", "associations", NotNow),
        ("accounting_storage/slurmdbd", "nojobs,nosteps", ChangeFailure),
        ("accounting_storage/none", "none", ChangeFailure),
    ],
)
@pytest.mark.usefixtures("log", "pyslurm")
def test_without_accounting_no_record_is_awaited(
    tmp_path: Path, accounting: str, enforced: str, kind: type[ChangeFailure]
) -> None:
    """A job that Slurm has started while it was pinned would be tried for its whole run."""
    settings = f"AccountingStorageType = {accounting}\nAccountingStorageEnforce = {enforced}"
    tool(
        tmp_path,
        "scontrol",
        f"""\
case "$*" in -V) echo slurm 99.01.1; exit ;; *config*) echo "{settings}"; exit ;; esac
while read -r line; do
  case "$line" in explsched-*) echo "invalid keyword: $line" >&2 ;; *) echo "{AWAITED}" >&2 ;; esac
done""",
    )
    client, (start, factor) = PyslurmClient(), (StartAtOnce(1), SetSiteFactor(4, 5))
    try:
        client.capabilities()
        assert client.apply([start, factor]) == (kind(start, AWAITED), kind(factor, AWAITED))
    finally:
        client.close()


def test_what_our_program_has_told_before_its_time_was_over_is_known(tmp_path: Path, too_late: None) -> None:
    program = tool(tmp_path, "program", f"cat > /dev/null; echo '2 {AWAITED}'")
    unknown = f"not known: {program}: no answer from slurmctld within 30 s"
    assert batch.write(program, FACTORS, 30, {}) == (
        NotNow(FACTORS[1], AWAITED),
        Unanswered(FACTORS[0], unknown),
        Unanswered(FACTORS[2], unknown),
    )
    for told in ("", "2 Unable to contact slurm controller (connect failure)"):
        tool(tmp_path, "program", f"cat > /dev/null; echo '{told}'")
        with pytest.raises(SlurmUnreachableError):
            batch.write(program, FACTORS, 30, {})


def test_an_odd_name_refuses_its_own_change_and_no_other(log: Path) -> None:
    """Domain users have a backslash in their names; scontrol might read it as something else."""
    odd = CreateReservation("explsched_7", 0.0, 2, ("n1",), ("CORP\\alice",), "main")
    pinned = TargetJob(8, ("n 1",), "two words")
    rest: list[Change] = [*FACTORS, AttachReservation(9, "explsched_9"), RequeueJob(9), SignalJob(10, "USR1")]
    failures = CliClient().apply([odd, pinned, *rest])
    assert {failure.change for failure in failures} == {odd, pinned, FACTORS[1]}
    assert "'CORP\\\\alice' cannot be given to scontrol" in failures[0].message
    told = log.read_text()
    assert "u job=3 sitef=10" in told
    assert "update JobId=9 ReservationName=explsched_9" in told
    assert "requeue Incomplete 9" in told
    assert "scancel --verbose --signal=USR1 --batch --state=RUNNING 10" in told
    assert "alice" not in told


def test_words_of_others_in_a_comment_never_stand_on_a_line(log: Path) -> None:
    strange = SetAdminComment(7, "two words\nupdate JobId=1 Priority=1")
    assert CliClient().apply([strange]) == (ChangeFailure(strange, "slurm_update error: refused"),)
    assert log.read_text() == "alone update JobId=7 AdminComment=two words\nupdate JobId=1 Priority=1\n"


def test_our_program_is_used_only_for_the_release_it_was_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_plugin.client.batch.sys.executable", str(tmp_path / "python"))
    program = tool(tmp_path, batch.PROGRAM, "echo 22.05")
    assert batch.find("22.05", 10, {}) == program
    assert batch.find("24.11", 10, {}) is None
    tool(tmp_path, batch.PROGRAM, "echo 22.05; exit 127")  # as where libslurm is missing
    assert batch.find("22.05", 10, {}) is None


def test_what_our_program_says_of_each_job(tmp_path: Path) -> None:
    program = tool(tmp_path, "program", f"cat > {tmp_path}/input; echo '2 Invalid job id specified'")
    assert batch.write(program, FACTORS, 10, {}) == (ChangeFailure(FACTORS[1], "Invalid job id specified"),)
    assert (tmp_path / "input").read_text() == "1 30\n2 20\n3 10\n"


def test_our_program_cannot_reach_slurmctld(tmp_path: Path) -> None:
    program = tool(tmp_path, "program", "cat > /dev/null; echo '1 Unable to contact slurm controller'; exit 1")
    with pytest.raises(SlurmUnreachableError, match="Unable to contact slurm controller"):
        batch.write(program, FACTORS, 10, {})


@pytest.mark.parametrize(("end", "why"), [("echo no >&2; exit 2", "no"), ("kill -11 $$", "ended with status -11")])
def test_our_program_does_not_come_to_its_end(tmp_path: Path, end: str, why: str) -> None:
    program = tool(tmp_path, "program", f"cat > /dev/null; {end}")
    failures = batch.write(program, FACTORS, 10, {})
    assert [failure.change for failure in failures] == FACTORS
    assert all(failure.message.endswith(why) for failure in failures)


def test_after_an_upgrade_squeue_is_asked_for_the_fields_of_the_new_release(log: Path, tmp_path: Path) -> None:
    """From 26.05 on OverSubscribe says NO of every job, as before of those with --exclusive alone."""
    tool(tmp_path, "squeue", f'echo "$*" > {tmp_path}/asked')
    client = CliClient()
    for release, field in (("24.11.7", "OverSubscribe:"), ("26.05.3", "Exclusive:")):
        tool(tmp_path, "scontrol", f"echo slurm {release}")
        assert client.jobs() == ()
        assert field in (tmp_path / "asked").read_text()


def test_after_an_upgrade_a_program_for_the_old_release_writes_no_more(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_plugin.client.batch.sys.executable", str(tmp_path / "python"))
    tool(tmp_path, batch.PROGRAM, f'[ "$1" ] && echo 99.01 || cat >> {tmp_path}/by-program')
    client = CliClient()
    assert client.apply(FACTORS[:1]) == ()
    assert (tmp_path / "by-program").read_text() == "1 30\n"
    assert not log.exists()
    tool(tmp_path, batch.PROGRAM, "exit 127")  # its libslurm has gone
    assert client.apply(FACTORS[:1]) == ()
    assert "u job=1 sitef=30" in log.read_text()


SQUEUE = """\
import sys
values = {values!r}
sys.stdout.reconfigure(errors="surrogateescape")
columns = (field.partition(":") for field in sys.argv[sys.argv.index("-O") + 1].split(","))
print("".join(values.get(name, "0") + mark for name, _, mark in columns))
"""


def test_in_a_federation_only_jobs_of_the_own_cluster_are_seen(log: Path, tmp_path: Path) -> None:
    """With FederationParameters=fed_display squeue, sprio and sacct show those of all, unless told otherwise."""
    tool(tmp_path, "scontrol", "echo slurm 99.01.1")
    for job_id in (7, 67_108_871):
        job = {"JobID": str(job_id), "State": "PENDING", "ArrayTaskID": "N/A"}
        (tmp_path / f"{job_id}.py").write_text(SQUEUE.format(values=job))
    jobs = f'{sys.executable} {tmp_path}/7.py "$@"; {{is_local}} || {sys.executable} {tmp_path}/67108871.py "$@"'
    is_local = "case \" $* \" in *' --local '*) true;; *) false;; esac"
    tool(tmp_path, "squeue", jobs.format(is_local=f"{{ {is_local}; }}"))
    priority = "0|90|0|0|1000|0|0||0"
    tool(tmp_path, "sprio", f"echo '7|1090|{priority}'; {is_local} || echo '67108871|1090|{priority}'")
    assert [(job.job_id, job.natives) for job in CliClient().jobs()] == [(7, (1090,))]
    tool(tmp_path, "sacct", f"{DELIMITER}; echo 7$mark; {is_local} || echo 67108871$mark")
    assert CliClient().accounting(("JobIDRaw",), 0.0, 1e9) == [["7"]]


@pytest.mark.parametrize("text", ["two\nlines", "\n\nexplsched:sweep=s", "ends with one\n", ""])
def test_line_breaks_in_text_end_no_row_of_sacct(log: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "text").write_text(text)
    row = 'printf "$mark"; cat text; printf "$mark"; cat text; printf "$mark\\n"'
    tool(tmp_path, "sacct", f"{DELIMITER}; cd {tmp_path}; printf 7; {row}; printf 8; {row}")
    found = CliClient().accounting(("JobIDRaw", "AdminComment", "Comment"), 0.0, 1e9)
    assert found == [["7", text, text], ["8", text, text]]


def test_tasks_of_arrays_that_have_run_are_asked_for_by_themselves(log: Path, tmp_path: Path) -> None:
    tool(tmp_path, "scontrol", "echo slurm 99.01.1")
    tool(tmp_path, "sprio", "")
    for job_id, task in ((7, "1,3-9"), (8, "1")):
        job = {"JobID": str(job_id), "ArrayJobID": "7", "State": "PENDING", "ArrayTaskID": task}
        (tmp_path / f"{job_id}.py").write_text(SQUEUE.format(values=job))
    each = f'{sys.executable} {tmp_path}/8.py "$@"'
    whole = f'{sys.executable} {tmp_path}/7.py "$@"'
    tool(tmp_path, "squeue", f"{whole}; case \" $* \" in *' --array-unique '*) {each};; esac")
    assert [(job.job_id, job.array_task_id) for job in CliClient().jobs()] == [(7, None), (8, 1)]


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        ("explsched:sweep=digits", [7]),
        ("my own words explsched:sweep=digits", [7]),
        ("no-explsched:sweep=digits", []),
        ("", []),
    ],
)
def test_a_job_is_found_by_its_word_wherever_the_comment_has_it(
    log: Path, tmp_path: Path, comment: str, found: list[int]
) -> None:
    ended = {"JobID": "7", "State": "COMPLETED", "ArrayTaskID": "N/A", "Comment": comment}
    (tmp_path / "squeue.py").write_text(SQUEUE.format(values=ended))
    tool(tmp_path, "squeue", f'exec {sys.executable} {tmp_path}/squeue.py "$@"')
    assert [job.job_id for job in CliClient().tagged_jobs("explsched:")] == found


def test_a_priority_that_an_operator_has_set_is_the_jobs_own(log: Path, tmp_path: Path) -> None:
    tool(tmp_path, "scontrol", "echo slurm 99.01.1")
    waiting = {"JobID": "7", "State": "PENDING", "ArrayTaskID": "N/A", "PriorityLong": "500"}
    (tmp_path / "squeue.py").write_text(SQUEUE.format(values=waiting))
    tool(tmp_path, "squeue", f'exec {sys.executable} {tmp_path}/squeue.py "$@"')
    tool(tmp_path, "sprio", "for part in main long; do echo '7|1|-2147483648|0|0|0|0|40|0||-2147483648'; done")
    (job,) = CliClient().jobs()
    assert (job.site_factor, job.natives, job.fair_share) == (None, (500,), None)


@pytest.mark.parametrize("field", ["Name", "Comment", "admin_comment", "UserName"])
def test_bytes_that_are_no_text_hide_no_job(log: Path, tmp_path: Path, field: str) -> None:
    """Slurm keeps what a shell gave it, in whatever encoding."""
    strange = os.fsdecode(b"Gr\xf6\xdfe \xff\xfe\x1b[31m \x1f \x85 \r\n\xe2\x80\xa8")
    job = {"JobID": "7", "State": "RUNNING", "ArrayTaskID": "N/A", field: strange}
    (tmp_path / "squeue.py").write_text(SQUEUE.format(values=job))
    tool(tmp_path, "squeue", f'exec {sys.executable} {tmp_path}/squeue.py "$@"')
    (found,) = CliClient().jobs()
    assert found.job_id == 7
    assert f"{found.name}{found.comment}{found.admin_comment}{found.user}".encode()


def test_a_changed_weight_of_age_counts_once_the_settings_have_been_looked_at(log: Path, tmp_path: Path) -> None:
    waiting = {"JobID": "7", "State": "PENDING", "ArrayTaskID": "N/A", "AccrueTime": "1700000000"}
    (tmp_path / "squeue.py").write_text(SQUEUE.format(values=waiting))
    tool(tmp_path, "squeue", f'exec {sys.executable} {tmp_path}/squeue.py "$@"')
    tool(tmp_path, "sprio", "echo '7|1090|0|90|0|0|1000|0|0||0'")
    client = CliClient()
    lags = []
    for weight in (100, 94):
        text = f"PriorityMaxAge = 1-00:00:00\nPriorityCalcPeriod = 12:00:00\nPriorityWeightAge = {weight}"
        tool(tmp_path, "scontrol", f'[ "$1" = -V ] && echo slurm 99.01.1 || echo "{text}"')
        client.capabilities()
        lags += [job.age_lag for job in client.jobs()]
    assert lags == [10, 4]


SPREAD = {
    "JobID": "7",
    "State": "RUNNING",
    "ArrayTaskID": "N/A",
    "NodeList": "n[3-4]",
    "NumNodes": "2",
    "NumTasks": "5",
    "tres-per-task": "gres:gpu:1",
}
"""What `sbatch -N2 -n5 --gpus-per-task=1` has got."""
UNEVEN = "JobId=7 JobName=x Nodes=n3 CPU_IDs=0-3 Mem=1 GRES=gpu:4(IDX:0-3) Nodes=n4 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:2) "


@pytest.mark.parametrize(
    ("told", "detail", "gpu_nodes", "gpu_indices", "reads"),
    [
        ({}, UNEVEN, (("n3", 4), ("n4", 1)), (("n3", (0, 1, 2, 3)), ("n4", (2,))), 1),
        ({"tres-per-task": "0", "tres-per-job": "gres:gpu:5"}, UNEVEN, (("n3", 4), ("n4", 1)), None, 1),
        ({}, "JobId=7 JobName=x Nodes=n[3-4] CPU_IDs=0 Mem=1 GRES=gpu:3(CNT:3) ", (("n3", 3), ("n4", 2)), (), 1),
        ({"NodeList": "n3", "NumNodes": "1"}, UNEVEN, (("n3", 5),), (), 0),
        ({"tres-per-task": "0", "tres-per-node": "gres:gpu:2"}, UNEVEN, (("n3", 2), ("n4", 2)), (), 0),
        ({"tres-per-task": "0"}, UNEVEN, (), (), 0),
        ({"Exclusive": "NODE"}, UNEVEN, (("n3", 3), ("n4", 2)), (), 0),
        ({"State": "PENDING", "NodeList": ""}, UNEVEN, (), (), 0),
    ],
    ids=["by task", "by job", "without indices", "one node", "by node", "no GPUs", "whole nodes", "waits"],
)
def test_gpus_that_slurm_spreads_unevenly_are_counted_where_they_are(
    log: Path,
    tmp_path: Path,
    told: dict[str, str],
    detail: str,
    gpu_nodes: tuple[tuple[str, int], ...],
    gpu_indices: tuple[tuple[str, tuple[int, ...]], ...] | None,
    reads: int,
) -> None:
    """Else GPUs seem free that are taken. What tells it is a long answer: it is read for such jobs alone."""
    (tmp_path / "squeue.py").write_text(SQUEUE.format(values=SPREAD | told))
    tool(tmp_path, "squeue", f'exec {sys.executable} {tmp_path}/squeue.py "$@"')
    tool(tmp_path, "sprio", "")
    tool(tmp_path, "scontrol", f'[ "$1" = -V ] && echo slurm 99.01.1 || {{ echo "$*" >> {log}; echo "{detail}"; }}')
    (job,) = CliClient().jobs()
    assert job.gpu_nodes == gpu_nodes
    assert gpu_indices is None or job.gpu_indices == gpu_indices
    asked = log.read_text().splitlines() if log.exists() else []
    assert sum("show job" in line for line in asked) == reads


def test_a_requeued_job_knows_the_delay_of_its_cluster(log: Path, tmp_path: Path) -> None:
    again = {"JobID": "7", "State": "PENDING", "ArrayTaskID": "N/A", "RestartCnt": "1"}
    (tmp_path / "squeue.py").write_text(SQUEUE.format(values=again))
    tool(tmp_path, "squeue", f'exec {sys.executable} {tmp_path}/squeue.py "$@"')
    tool(tmp_path, "sprio", "")
    tool(tmp_path, "scontrol", '[ "$1" = -V ] && echo slurm 99.01.1 || echo "AuthInfo = cred_expire=300"')
    assert [job.requeue_delay_s for job in CliClient().jobs()] == [300.0]


def test_ages_are_reckoned_by_slurms_clock(log: Path, tmp_path: Path) -> None:
    """By which the job has aged for half of the longest time; by ours it has for all of it."""
    waiting = {"JobID": "7", "State": "PENDING", "ArrayTaskID": "N/A", "AccrueTime": "1700000000"}
    (tmp_path / "squeue.py").write_text(SQUEUE.format(values=waiting))
    tool(tmp_path, "squeue", f'exec {sys.executable} {tmp_path}/squeue.py "$@"')
    tool(tmp_path, "sprio", "echo '7|1040|0|40|0|0|1000|0|0||0'")
    told = "PriorityMaxAge = 1-00:00:00\nPriorityCalcPeriod = 12:00:00\nPriorityWeightAge = 100"
    tool(tmp_path, "scontrol", f'[ "$1" = -V ] && echo slurm 99.01.1 || echo "{told}"')
    tool(tmp_path, "sdiag", "echo 'sdiag output at today (1700043200)'; echo 'Server thread count: 3'")
    client = CliClient()
    client.load()
    assert [job.age_lag for job in client.jobs()] == [10]


def test_limits_that_slurm_does_not_tell_in_time_stop_no_pass_and_may_be_on_cpus(log: Path, tmp_path: Path) -> None:
    elastic = {"JobID": "7", "State": "PENDING", "ArrayTaskID": "N/A", "Comment": "explsched:elastic=1-4"}
    (tmp_path / "squeue.py").write_text(SQUEUE.format(values=elastic))
    tool(tmp_path, "squeue", f'case "$*" in *" -O "*) exec {sys.executable} {tmp_path}/squeue.py "$@" ;; esac')
    tool(tmp_path, "sprio", "exit 0")
    tool(tmp_path, "sdiag", "echo 'Server thread count: 3'")
    answers = f"""\
case "$*" in
  -V) echo slurm 99.01.1 ;;
  "show config") printf '%s\\n' "AccountingStorageEnforce = associations,limits" "PreemptType = preempt/qos" ;;
  *assoc_mgr*) echo asked >> {log}; echo "Unable to contact slurm controller" >&2; exit 1 ;;
esac
"""
    tool(tmp_path, "scontrol", answers)
    client = CliClient()
    client.load()
    assert [client.look().limits_cpus for _ in range(2)] == [True, True]
    found = client.look()
    assert found.enforces_limits
    assert found.preempts_by_qos
    assert log.read_text() == "asked\n"


def test_the_network_is_asked_for_once_and_when_nodes_come(log: Path, tmp_path: Path) -> None:
    answers = f"""\
case "$*" in
  "show config") echo "TopologyPlugin = topology/tree" ;;
  "show topology") echo asked >> {log}; echo "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]" ;;
esac
"""
    tool(tmp_path, "scontrol", answers)
    client = CliClient()
    nodes = [SlurmNode(name, "IDLE", 4, frozenset({"main"})) for name in ("n1", "n2")]
    for there in (nodes[:1], nodes[:1], nodes, nodes):
        assert client.topology(there).switches.keys() == {"n1", "n2"}
    assert log.read_text() == "asked\nasked\n"


PYSLURM = """\
from types import SimpleNamespace as JobSubmitDescription

RPCError = OSError


class Job(int):
    def modify(self, wanted):
        if self == 2:
            raise RPCError("Invalid job id specified")
        if self == 4:
            raise RPCError("Job update not available right now, the DB index is being set, try again in a bit")
"""


@pytest.fixture
def pyslurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pretended pyslurm, for children too."""
    module = tmp_path / "modules" / "pyslurm.py"
    module.parent.mkdir()
    module.write_text(PYSLURM)
    monkeypatch.syspath_prepend(module.parent)


@pytest.mark.usefixtures("pyslurm")
def test_pyslurm_tells_of_which_jobs_slurm_awaits_the_record_before_its_time_is_over(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six of them, 5 s each, were more than it had time for."""
    monkeypatch.setattr("slurm_plugin.client.pyslurm_.PATIENCE", 0.0)
    awaited, later, start = SetSiteFactor(4, 5), SetSiteFactor(5, 5), StartAtOnce(6)
    client = PyslurmClient()
    try:
        assert client.apply([*FACTORS, awaited, later, start]) == (
            ChangeFailure(FACTORS[1], "Invalid job id specified"),
            NotNow(awaited, AWAITED),
            Unanswered(later, "not known: not tried, Slurm is slow"),
        )
    finally:
        client.close()


@pytest.mark.usefixtures("pyslurm")
def test_pyslurm_writes_site_factors_and_the_commands_do_all_else(log: Path, tmp_path: Path) -> None:
    (tmp_path / "squeue.py").write_text(SQUEUE.format(values={"JobID": "7", "State": "RUNNING", "ArrayTaskID": "N/A"}))
    tool(tmp_path, "squeue", f'case "$*" in *" -O "*) exec {sys.executable} {tmp_path}/squeue.py "$@" ;; esac')
    tool(tmp_path, "sprio", "exit 0")
    client = PyslurmClient()
    try:
        awaited = SetSiteFactor(4, 5)
        assert client.apply([*FACTORS, awaited, RequeueJob(3)]) == (
            ChangeFailure(FACTORS[1], "Invalid job id specified"),
            NotNow(awaited, AWAITED),
        )
        assert log.read_text().splitlines()[0] == "requeue Incomplete 3"
        answers = """\
case "$*" in
  -V) echo slurm 99.01.1 ;;
  *reservation*) echo "ReservationName=upgrade StartTime=60 EndTime=180 Nodes=n[1-2] Flags=MAINT,TIME_FLOAT" ;;
  *) echo "PriorityType = priority/basic" ;;
esac
"""
        tool(tmp_path, "scontrol", answers)
        seen = client.look()
        assert [(one.name, one.nodes, one.flags) for one in seen.reservations] == [
            ("upgrade", ("n1", "n2"), frozenset({"MAINT", "TIME_FLOAT"}))
        ]
        assert [job.job_id for job in seen.jobs] == [7]
    finally:
        client.close()
