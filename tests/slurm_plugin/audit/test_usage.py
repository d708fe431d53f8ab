"""GPU-hours, losses and waits from rows as sacct prints them, and every form of the report."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from explsched.errors import SlurmError
from slurm_plugin.audit_file import AuditEntry
from slurm_plugin.cli import report
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob, SlurmNode
from slurm_plugin.usage import FIELDS, UsageLine, run_of, usage
from tests.slurm_kit import record

HOUR_S = 3600.0
PREEMPTED = "explsched-preemption:since=0&n=0&lost=0&p=0%2C7200%2C2%2C1800%2Cworth+less"


def row(job_id: int, **fields: Any) -> list[str]:
    """A run of two GPUs from 1 h to 3 h, that waited for 30 min; times are given in hours."""
    told: dict[str, Any] = {
        "JobIDRaw": job_id,
        "User": "ada",
        "Account": "lab",
        "Partition": "main",
        "State": "COMPLETED",
        "Submit": 0.5,
        "Eligible": 0.5,
        "Start": 1,
        "End": 3,
        "ElapsedRaw": 7200,
        "TimelimitRaw": 240,
        "AllocTRES": "cpu=1,gres/gpu=2",
        "ReqTRES": "cpu=1,gres/gpu=2",
        "ConsumedEnergyRaw": 0,
        "AdminComment": "",
        "Comment": "explsched:sweep=digits",
    }
    told |= fields
    times = {"Submit", "Eligible", "Start", "End"}
    return [
        str(int(value * HOUR_S)) if name in times and not isinstance(value, str) else str(value)
        for name, value in told.items()
    ]


def line(*rows: list[str], audited: tuple[AuditEntry, ...] = (), by: str = "user", since_h: float = 0) -> UsageLine:
    return usage([run_of(one) for one in rows], audited, by, since_h * HOUR_S, 10 * HOUR_S)[0]


def test_the_rows_of_this_file_are_those_that_sacct_is_asked_for() -> None:
    assert len(row(1)) == len(FIELDS)


def test_gpu_hours_count_as_far_as_they_lie_in_the_period() -> None:
    assert line(row(1)).used_gpu_h == 4
    assert line(row(1), since_h=2).used_gpu_h == 2
    assert line(row(1, End="Unknown", State="RUNNING")).used_gpu_h == 18
    assert line(row(1, Start="Unknown", End="Unknown", State="PENDING")).used_gpu_h == 0


def test_energy_counts_as_far_as_it_was_used_in_the_period() -> None:
    used = row(1, ConsumedEnergyRaw=7_200_000)
    assert (line(used).energy_kwh, line(used, since_h=2).energy_kwh) == (2, 1)
    assert line(row(1, ConsumedEnergyRaw=7_200_000, End=1)).energy_kwh is None


def test_what_preemption_cost_and_what_failed_was_not_useful() -> None:
    again = row(1, Start=4, End=5, AdminComment=PREEMPTED)
    found = line(row(1, State="PREEMPTED"), again, row(2, State="FAILED", End=2))
    assert (found.jobs, found.used_gpu_h, found.failed_gpu_h) == (2, 8, 2)
    assert (found.lost_gpu_h, found.preemptions, found.useful_gpu_h) == (0.5, 1, 5.5)
    assert line(again, since_h=3).preemptions == 0


def test_what_happened_to_a_job_is_counted_in_one_partition() -> None:
    """A job for several partitions was preempted in one, and stopped early in the other."""
    former = row(1, Partition="short", State="PREEMPTED", End=2, AdminComment=PREEMPTED)
    runs = [former, row(1, Partition="long", Start=4, End=5, AdminComment=PREEMPTED)]
    stop = AuditEntry(5 * HOUR_S, 1, "JobState", "RUNNING", "CANCELLED", "p", "stop", "")
    found = usage([run_of(one) for one in runs], (stop,), "partition", 0, 10 * HOUR_S)
    assert {one.name: (one.preemptions, one.lost_gpu_h, one.saved_gpu_h) for one in found} == {
        "short": (1, 0.5, 0),
        "long": (0, 0, 6),
        "all": (1, 0.5, 6),
    }


def test_jobs_that_were_stopped_early_saved_the_rest_of_their_limit_at_most() -> None:
    def stop(refused: str = "", at_h: float = 3) -> AuditEntry:
        return AuditEntry(at_h * HOUR_S, 1, "JobState", "RUNNING", "CANCELLED", "p", "stop", "", refused=refused)

    assert line(row(1, State="CANCELLED by 0"), audited=(stop(),)).saved_gpu_h == 4
    assert line(row(1), audited=(stop("denied"),)).saved_gpu_h == 0
    assert line(row(1, TimelimitRaw="UNLIMITED"), audited=(stop(),)).saved_gpu_h == 0
    assert line(row(1, End=11), audited=(stop(at_h=11),)).saved_gpu_h == 0, "that is of the next period"


def test_waits_are_those_of_first_starts_in_the_period() -> None:
    found = line(row(1), row(1, Start=5, End=6), row(2, Start=2.5))
    assert found.wait_median_h == 1.25
    assert found.wait_p90_h == pytest.approx(1.85), "not above the longest of the two, 2 h"
    assert line(row(1), since_h=2).wait_median_h is None


def test_no_wait_is_negative() -> None:
    """An eligible time may be after the start, as was seen of jobs that their owner requeued."""
    found = line(row(1, Eligible=3), row(1, Eligible=3, Start=5, End=6))
    assert (found.wait_median_h, found.wait_p90_h) == (0, 0)


@pytest.mark.parametrize(
    ("by", "name"), [("user", "ada"), ("account", "lab"), ("partition", "main"), ("sweep", "ada/digits")]
)
def test_lines_are_named_by_what_was_asked(by: str, name: str) -> None:
    assert line(row(1), by=by).name == name
    found = usage([run_of(row(1)), run_of(row(2, End=9))], (), by, 0, 10 * HOUR_S)
    assert [one.name for one in found] == [name, "all"]


def test_sweeps_of_one_name_are_several_users() -> None:
    runs = [row(1), row(2, User="bob"), row(3, Comment=""), row(4, User="bob", Comment="")]
    found = usage([run_of(one) for one in runs], (), "sweep", 0, 10 * HOUR_S)
    assert [(one.name, one.jobs) for one in found] == [("-", 2), ("ada/digits", 1), ("bob/digits", 1), ("all", 4)]


def test_runs_without_gpus_are_left_out_and_typed_ones_are_counted() -> None:
    assert line(row(1, AllocTRES="cpu=1", ReqTRES="cpu=1")).used_gpu_h == 0
    assert line(row(1, AllocTRES="cpu=1,gres/gpu:a100=2,gres/gpu:h100=1")).used_gpu_h == 6


def test_a_job_on_shards_uses_parts_of_gpus() -> None:
    """All of what they used looked idle."""
    (found, _) = usage([run_of(row(1, AllocTRES="cpu=1,gres/shard=2"), 4)], (), "user", 0, 10 * HOUR_S)
    assert (found.jobs, found.used_gpu_h) == (1, 1)
    (found, _) = usage([run_of(row(1, AllocTRES="gres/gpu=2,gres/shard=2"), 4)], (), "user", 0, 10 * HOUR_S)
    assert found.used_gpu_h == 4


@pytest.mark.parametrize("fields", [[], ["1"] * 3, row(1)[:-1], row(1, JobIDRaw="x"), row(1, Submit="never")])
def test_rows_that_cannot_be_read_are_faults(fields: list[str]) -> None:
    with pytest.raises(ValueError):
        _ = run_of(fields)


@pytest.mark.parametrize("comment", ["explsched:sweep=%ZZ&nonsense=1", "free text", "explsched:"])
def test_a_strange_comment_is_no_sweep(comment: str) -> None:
    assert run_of(row(1, Comment=comment, AdminComment="explsched-preemption:what")).preemptions == ()


HOSTILE = "=cmd|'<script>alert(1)</script>"


def test_hostile_names_are_text_in_every_form() -> None:
    found = usage([run_of(row(1, User=HOSTILE))], (), "user", 0, 10 * HOUR_S)
    period, capacity = (0.0, 10 * HOUR_S), (80.0, 76.0)
    page = report.usage_html(found, "user", period, capacity)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    rows = list(csv.reader(io.StringIO(report.usage_csv(found, "user", period, capacity))))
    assert rows[1][0] == f"'{HOSTILE}"
    assert rows[0][0] == "user"
    told = json.loads(report.usage_json(found, "user", period, capacity))
    assert (told["lines"][0]["name"], told["idle_gpu_h"], told["all"]["used_gpu_h"]) == (HOSTILE, 76, 4)
    assert "80.0 GPU-hours in all, 76.0 idle" in report.usage_table(found, "user", period, capacity)


def test_a_report_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "room", lambda: 80)
    line = UsageLine("ada", 120, 410.5, 380.25, 10.0, 20.25, 35.5, 4, 0.5, 12.25, 160.75)
    table = report.usage_table([line], "user", (0.0, 86400.0), (800.0, 389.5))
    assert all(len(row) <= 80 for row in table.splitlines()), table
    of = 1_234_567.89
    large = UsageLine("a-user", 1_234_567, of, of, of, of, of, 12_345, 999.99, 999.99, of)
    table = report.usage_table([large], "user", (0.0, 86400.0), (1_234_567.89, 1_234_567.89))
    assert all(len(row) <= 80 for row in table.splitlines()), table
    assert table.split().count("1234568") == 6


NOW_S = 2e9
EVENTS = """\
1999990000|1999998000|0|cpu=48,gres/gpu=12,mem=48000M,node=3
1999998000|Unknown|0|cpu=32,gres/gpu=8,mem=32000M,node=2
1999999000|1999999100|1|cpu=32,gres/gpu=8,mem=32000M,node=2
"""
"""As slurmdbd tells them: twelve GPUs, then eight, and slurmctld away for a while."""
NODE = "NodeName=n1 Gres=gpu:4 State=IDLE Partitions=main"


def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str, sacctmgr: str) -> tuple[Any, str]:
    """What the command prints as JSON, and says beside, two billion seconds after 1970."""
    tools = {"sacct": "", "sacctmgr": sacctmgr, "scontrol": f"echo {NODE}"}
    for name, body in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "events").write_text(EVENTS)
    (tmp_path / "explsched.yaml").write_text(f"audit: {{file: {tmp_path}/audit.jsonl}}\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    done = CliRunner().invoke(report.report, [*options, "--json", "-f", f"{tmp_path}/explsched.yaml"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), done.stderr


def test_gpus_that_came_or_went_count_while_they_were_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = f"cat {tmp_path}/events"
    found, told = reported(tmp_path, monkeypatch, "--since", "1h", sacctmgr=asked)
    assert found["all_gpu_h"] == (1600 * 12 + 2000 * 8) / 3600
    assert "GPU-hours in all" not in told
    found, told = reported(tmp_path, monkeypatch, "--since", "1d", sacctmgr=asked)
    assert found["all_gpu_h"] == (8000 * 12 + 2000 * 8) / 3600
    assert "GPU-hours in all are those since 2033-05-18T" in told


@pytest.mark.parametrize(
    ("sacctmgr", "why"),
    [
        ("echo Access/permission denied >&2; exit 1", "denied"),
        ("echo '1999990000|Unknown|0|cpu=48'", "slurmdbd counts none"),
        ("echo unexpected", "sacctmgr show event"),
    ],
)
def test_the_present_nodes_count_where_slurmdbd_does_not_tell_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sacctmgr: str, why: str
) -> None:
    found, told = reported(tmp_path, monkeypatch, "--since", "1h", sacctmgr=sacctmgr)
    assert found["all_gpu_h"] == 4
    assert "those of the present nodes" in told
    assert why in told


def test_nothing_was_used_in_the_future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = reported(tmp_path, monkeypatch, "--since", "1h", "--until", "2040-01-01", sacctmgr="exit 1")
    assert (found["until_s"], found["all_gpu_h"]) == (NOW_S, 4)


def test_without_slurmctld_all_but_jobs_on_shards_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = int(NOW_S)
    times = {"Start": (now - 900) / HOUR_S, "End": (now - 600) / HOUR_S}
    shards = {"AllocTRES": "cpu=1,gres/shard=2", "ReqTRES": "cpu=1,gres/shard=2"}
    rows = [row(1, **times), row(2, User="bob", **shards, **times)]
    monkeypatch.setattr("slurm_plugin.client.cli.CliClient.accounting", lambda *_: rows)

    def nodes(_client: CliClient) -> list[SlurmNode]:
        raise SlurmError("no answer from slurmctld")

    monkeypatch.setattr("slurm_plugin.client.cli.CliClient.nodes", nodes)
    found, told = reported(tmp_path, monkeypatch, "--since", "1h", sacctmgr=f"cat {tmp_path}/events")
    assert [one["name"] for one in found["lines"]] == ["ada"]
    assert "jobs on shards are left out" in told


@pytest.mark.parametrize("answers", [True, False])
def test_what_slurmdbd_is_told_at_the_end_is_asked_for_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    """Trainings that run were of no sweep, and preemptions of jobs that wait or run again did not count."""
    now = int(NOW_S)
    ended = row(1, Start=(now - 900) / HOUR_S, End=(now - 600) / HOUR_S)
    runs = row(1, Start=(now - 300) / HOUR_S, End="Unknown", State="RUNNING", Comment="")
    preempted = f"explsched-preemption:since=0&n=1&lost=90&p=0%2C{now - 600}%2C2%2C1800%2Cwhy"
    monkeypatch.setattr("slurm_plugin.client.cli.CliClient.accounting", lambda *_: [["torn"], ended, runs])

    def jobs(_client: CliClient) -> list[SlurmJob]:
        if not answers:
            raise SlurmError("no answer from slurmctld")
        return [record(1, comment="explsched:sweep=digits", admin_comment=preempted)]

    monkeypatch.setattr("slurm_plugin.client.cli.CliClient.jobs", jobs)
    found, told = reported(tmp_path, monkeypatch, "--since", "1h", "--by", "sweep", sacctmgr=f"cat {tmp_path}/events")
    by_name = {one["name"]: (one["jobs"], one["preemptions"], one["lost_gpu_h"] > 0) for one in found["lines"]}
    assert by_name == ({"ada/digits": (1, 1, True)} if answers else {"ada/digits": (1, 0, False), "-": (1, 0, False)})
    unknown = "sweeps and preemptions of present jobs are not known: no answer from slurmctld"
    assert (unknown in told) is not answers
