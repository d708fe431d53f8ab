"""What is published, who may see it, and what commands do with it."""

from __future__ import annotations

import _thread
import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from explsched.cli import own_name, root
from sched_policy.model import Switch
from sched_policy.plan import Plan, Score
from slurm_plugin.client.capabilities import Capabilities, SlurmVersion
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode, Topology
from slurm_plugin.config import Config, PreemptionSection, ProgressSection
from slurm_plugin.instance.heartbeat import Heartbeat
from slurm_plugin.instance.holder import Holder
from slurm_plugin.state.jobs import explanations
from slurm_plugin.state.metrics import METRICS_FILE, gpu_uses
from slurm_plugin.state.publish import Publisher, private, state_of
from slurm_plugin.state.published import (
    FILE,
    PROGRESS,
    Change,
    Curve,
    Explanation,
    NodeRow,
    PlanLine,
    Totals,
    encoded,
    part,
    read,
)
from slurm_plugin.state.serving import Visible
from slurm_plugin.state.view import View
from tests.slurm_kit import record
from tests.slurm_plugin.state import HOSTILE, JOBS, NOW_S, configured, published, running


def words(state: object) -> str:
    """Everything that a state says."""
    return msgspec.json.encode(state).decode()


def invoke(tmp_path: Path, *argv: str) -> Result:
    """A command where no command of Slurm can be found: what it says comes from the daemon."""
    path = tmp_path / "explsched.yaml"
    sections = {"progress": {"spool": str(tmp_path / "spool")}, "state": {"directory": str(tmp_path / "state")}}
    path.write_text(yaml.safe_dump(sections))
    return CliRunner().invoke(root, [*argv, "-f", str(path)], env={"PATH": "/nowhere"})


def test_what_was_written_is_read(tmp_path: Path) -> None:
    state = published(tmp_path)
    assert {row.jobid for row in state.jobs} == {41, 42, 43}
    assert {node.name: node.jobs for node in state.nodes} == {"n1": ((41, 2), (42, 2)), "n2": ()}
    assert (state.samples[-1].gpus, state.samples[-1].busy_gpus, state.samples[-1].waiting) == (8, 2, 1)
    assert part(state.changes, tuple[Change, ...])[0].jobid == 43
    left = state.explanation(44)
    assert left is not None
    assert not left.is_steered
    assert "asks for no GPUs" in left.sentences[0]
    assert state.explanation(99) is None


def test_everybody_reads_it_unless_slurm_hides_jobs(tmp_path: Path) -> None:
    _ = published(tmp_path)
    assert stat.S_IMODE((tmp_path / "state" / FILE).stat().st_mode) == 0o644
    _ = published(tmp_path, "jobs")
    assert stat.S_IMODE((tmp_path / "state" / FILE).stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("setting", "hidden"),
    [("none", ()), ("(null)", ()), ("usage,users", ()), ("jobs,usage", ("jobs",)), ("Jobs, Nodes", ("jobs", "nodes"))],
)
def test_what_slurm_hides_is_known(setting: str, hidden: tuple[str, ...]) -> None:
    can = Capabilities(SlurmVersion(24, 11), {"PrivateData": setting})
    assert private(can, "all") == hidden
    assert private(can, "group") == (*hidden, PROGRESS)


def test_a_slurm_that_does_not_say_what_it_hides_hides_jobs() -> None:
    assert private(Capabilities(SlurmVersion(24, 11), {}), "all") == ("jobs",)


def test_nobody_sees_another_users_job_where_slurm_hides_jobs(tmp_path: Path) -> None:
    state = published(tmp_path, "jobs")
    adas = Visible(state).of("ada")
    assert {row.jobid for row in adas.jobs} == {41, 43}
    assert "bob" in words(state)
    for hidden in ("bob", "42", "digits"):
        assert hidden not in words(adas), hidden
    assert {one.jobid for one in part(adas.explanations, tuple[Explanation, ...])} == {41, 43}
    assert all(line.jobs == (43,) for line in part(adas.plan, tuple[PlanLine, ...]))
    assert Visible(state).of("eve").jobs == ()
    assert Visible(published(tmp_path, "nodes")).of("ada").nodes == ()
    assert Visible(published(tmp_path)).of("eve").jobs == published(tmp_path).jobs


def test_what_jobs_report_is_their_owners(tmp_path: Path) -> None:
    state = published(tmp_path, PROGRESS)
    assert stat.S_IMODE((tmp_path / "state" / FILE).stat().st_mode) == 0o640
    told = [
        Curve(job_id, user, "j", "digits", "loss", "RUNNING", "min", 0.123, 1, 60.0, None, (), ((1, 0.123),))
        for job_id, user in ((41, "ada"), (42, "bob"))
    ]
    rows = tuple(replace(row, value=0.123, params="lr=0.777", reason="learns 9 %") for row in state.jobs)
    sentences = [Explanation(42, "bob", True, ("Job 42 of bob: RUNNING.", "It has reported 0.123."))]  # noqa: FBT003
    told_state = replace(state, curves=encoded(told), jobs=rows, explanations=encoded(sentences))
    adas = Visible(told_state).of("ada")
    assert {row.jobid: (row.value, row.params) for row in adas.jobs} == {
        41: (0.123, "lr=0.777"),
        42: (None, ""),
        43: (0.123, "lr=0.777"),
    }
    assert [curve.jobid for curve in part(adas.curves, tuple[Curve, ...])] == [41]
    assert adas.explanation(42) == Explanation(42, "bob", True, ("Job 42 of bob: RUNNING.",))  # noqa: FBT003
    assert next(row.reason for row in adas.jobs if row.jobid == 42) == ""


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"form": 1}', b"\xff\xfe"])
def test_what_is_no_state_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert read(tmp_path) is None


def test_a_state_of_another_release_is_none(tmp_path: Path) -> None:
    _ = published(tmp_path)
    path = tmp_path / "state" / FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "form": 99}))
    assert read(tmp_path / "state") is None


def test_it_is_stale_when_passes_were_missed(tmp_path: Path) -> None:
    state = published(tmp_path)
    assert not state.is_stale(NOW_S + 3 * state.interval_s)
    assert state.is_stale(NOW_S + 3 * state.interval_s + 61)


def test_the_score_of_a_job_without_a_time_limit_is_none_in_json_too(tmp_path: Path) -> None:
    """JSON has no infinity: `status --fresh --json` could not be read."""
    config = replace(configured(tmp_path), policy="srsf")
    view = View.of(config, ClusterRecords((), (record(43, time_limit_s=None),), ()), NOW_S)
    assert not math.isfinite(view.scores[43].value)
    (row,) = state_of(view, (), ()).jobs
    assert row.score is None


def test_samples_of_an_earlier_daemon_are_kept(tmp_path: Path) -> None:
    _ = published(tmp_path)
    later = published(tmp_path, now_s=NOW_S + 3600)
    assert [sample.time_s for sample in later.samples] == [NOW_S, NOW_S + 3600]


@pytest.mark.parametrize("before_s", [2 * 86_400, -86_400])
def test_samples_of_another_day_and_of_a_clock_that_was_ahead_are_left_out(tmp_path: Path, before_s: float) -> None:
    _ = published(tmp_path, now_s=NOW_S - before_s)
    assert [sample.time_s for sample in published(tmp_path).samples] == [NOW_S]
    assert [sample.time_s for sample in published(tmp_path, now_s=NOW_S + 600).samples] == [NOW_S, NOW_S + 600]


def test_a_directory_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").write_text("in the way")
    for _ in range(2):
        with pytest.raises(AssertionError):
            _ = published(tmp_path)
    assert "state not published, commands ask Slurm" in caplog.text
    assert Publisher(tmp_path / "state").directory == tmp_path / "state"


def test_while_the_file_system_hangs_passes_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ = published(tmp_path)
    config = configured(tmp_path)
    answers, really = threading.Event(), os.open

    def slow(path: str | Path, flags: int, *mode: int, **options: Any) -> int:
        if Path(path).is_relative_to(config.state.directory):
            answers.wait()
        return really(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", slow)
    publisher = Publisher(config.state.directory, patience_s=0.05)

    def publish(now_s: float) -> list[float]:
        view = View.of(config, ClusterRecords((), JOBS, ()), now_s)
        publisher.publish(view, (), (), "tests", Totals())
        found = read(config.state.directory) if answers.is_set() else None
        return [sample.time_s for sample in found.samples] if found else []

    for _ in range(3):
        assert publish(NOW_S + 600) == []
    assert caplog.text.count("has not answered") == 1
    answers.set()
    while len(found := publish(NOW_S + 1200)) < 3:
        pass
    assert found[:3] == [NOW_S, NOW_S + 600, NOW_S + 1200], "those of the earlier daemon, too"


def test_what_an_earlier_daemon_published_is_not_overwritten_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(_function: Callable[[], object], _arguments: tuple[()]) -> int:
        raise RuntimeError("can't start new thread")

    _ = published(tmp_path)
    config = configured(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", without_memory)
        publisher = Publisher(config.state.directory)
    view = View.of(config, ClusterRecords((), JOBS, ()), NOW_S + 600)
    publisher.publish(view, (), (), "tests", Totals())
    found = read(config.state.directory)
    assert found is not None
    assert [sample.time_s for sample in found.samples] == [NOW_S, NOW_S + 600]


def test_plan_knows_the_reach_of_preemption(tmp_path: Path) -> None:
    """As a pass of the daemon does: it is what an admin looks at before the daemon is started."""
    since = {"submit_s": NOW_S - 10_000, "eligible_s": NOW_S - 10_000}
    holds = {"comment": "explsched:checkpoint=USR1", "node_names": ("n1",), "gpu_nodes": (("n1", 4),)}
    jobs = (
        record(1, user="rich", state="RUNNING", start_s=NOW_S - 7200, time_limit_s=36_000.0, **since, **holds),
        record(2, user="poor", reason="Resources", natives=(900,), fair_share=800, **since),
        record(3, user="rich", reason="Priority", natives=(200,), fair_share=100, **since),
    )
    nodes = (SlurmNode("n1", "ALLOCATED", 4, frozenset({"main"})),)
    for reach, preempted in (("scope", []), ("fair-share", [1])):
        config = replace(configured(tmp_path), policy="srtf", preemption=PreemptionSection(reach=reach))
        found = View.of(config, ClusterRecords(nodes, jobs, ()), NOW_S).plan.preemptions
        assert [one.job_id for one in found] == preempted


def test_status_explain_and_plan_ask_nobody_where_a_daemon_publishes(tmp_path: Path) -> None:
    _ = published(tmp_path, now_s=time.time() - 5)
    listed = invoke(tmp_path, "status", "-o", "jobid,name,user")
    assert listed.exit_code == 0, listed.output
    assert {line.split()[0] for line in listed.stdout.splitlines()} == {"JOBID", "41", "42", "43"}
    assert "\x1b" not in listed.stdout
    assert "as the daemon saw it " in listed.stderr
    rows = json.loads(invoke(tmp_path, "status", "--json").stdout)["jobs"]
    assert next(row for row in rows if row["jobid"] == 43)["name"] == HOSTILE
    assert "Slurm says: Resources" in invoke(tmp_path, "explain", "43").stdout
    assert "left to Slurm because it asks for no GPUs." in invoke(tmp_path, "explain", "44").stdout
    assert json.loads(invoke(tmp_path, "explain", "44", "--json").stdout)["jobid"] == 44
    planned = invoke(tmp_path, "plan")
    assert "change   scontrol update JobId=43 SiteFactor=5" in planned.stdout
    assert json.loads(invoke(tmp_path, "plan", "--json").stdout)["changes"][0]["jobid"] == 43


def test_what_a_job_reports_sends_nothing_to_a_terminal(tmp_path: Path) -> None:
    state = published(tmp_path, now_s=time.time() - 5)
    evil = "it reports l\x1b]0;x\x07oss"
    told = replace(
        state,
        explanations=encoded([Explanation(43, "bob", is_steered=True, sentences=("Job 43.", evil))]),
        plan=encoded([PlanLine("stop", (43,), evil)]),
        changes=encoded([Change(43, evil)]),
    )
    (tmp_path / "state" / FILE).write_bytes(msgspec.json.encode(told))
    for argv in (("explain", "43"), ("plan",)):
        shown = invoke(tmp_path, *argv).stdout
        assert "l?]0;x?oss" in shown
        assert not set(shown) & {"\x1b", "\x07"}


@pytest.mark.parametrize("more", [("--fresh",), ()])
def test_slurm_is_asked_where_the_state_is_stale_or_not_wanted(tmp_path: Path, more: tuple[str, ...]) -> None:
    _ = published(tmp_path, now_s=time.time() - (5 if more else 600))
    assert "is not installed" in str(invoke(tmp_path, "status", *more).exception)


def test_a_daemon_that_spares_a_busy_slurmctld_spares_it_commands_too(tmp_path: Path) -> None:
    """Its passes may be 750 s apart then, and everybody's `status` would ask instead."""
    _ = published(tmp_path, now_s=time.time() - 600)
    alive = Heartbeat(tmp_path / "spool", "c1", Holder.here())
    alive.beat(3600)
    assert invoke(tmp_path, "status").exit_code == 0
    alive.stop()
    assert "is not installed" in str(invoke(tmp_path, "status").exception)
    alive.beat(3600)
    _ = published(tmp_path, now_s=time.time() - 1000)
    assert "is not installed" in str(invoke(tmp_path, "status").exception), "its passes fail"


def test_sweeps_of_one_name_are_several_users(tmp_path: Path) -> None:
    jobs = (*JOBS, record(45, user="ada", comment="explsched:sweep=digits"))
    _ = published(tmp_path, jobs=jobs)
    assert "explsched_sweeps 2.0" in (tmp_path / "state" / METRICS_FILE).read_text().splitlines()


@pytest.mark.parametrize(
    ("state", "use"),
    [
        ("IDLE", "free"),
        ("IDLE+PLANNED", "free"),
        ("IDLE+CLOUD+POWERED_DOWN", "free"),  # Slurm turns it on for a job
        ("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", "free"),
        ("IDLE+CLOUD+POWERING_DOWN", "unavailable"),
        ("IDLE*", "unavailable"),
        ("IDLE+REBOOT_ISSUED", "unavailable"),
        ("IDLE+INVALID_REG", "unavailable"),
        ("UNKNOWN", "unavailable"),
        ("IDLE+MAINTENANCE", "unavailable"),
    ],
)
def test_a_free_gpu_is_unavailable_where_slurm_starts_nothing(state: str, use: str) -> None:
    uses = gpu_uses([NodeRow("n1", state, 2, (), (), ((), ()))])
    assert {name: count for name, count in uses.items() if count} == {use: 2}


def test_metrics_can_be_parsed_and_name_nobody(tmp_path: Path) -> None:
    _ = published(tmp_path, "jobs")
    path = tmp_path / "state" / METRICS_FILE
    families = {family.name: family for family in text_string_to_metric_families(path.read_text())}
    assert families["explsched_passes"].samples[0].value == 3
    assert families["explsched_gpus_busy"].samples[0].value == 2, "which two jobs share"
    uses = {sample.labels["use"]: sample.value for sample in families["explsched_gpus_by_use"].samples}
    assert uses == {"one job": 0, "shared": 2, "free": 2, "unavailable": 4}
    trainings = {sample.labels["state"]: sample.value for sample in families["explsched_trainings"].samples}
    assert trainings == {"running": 1, "waiting": 0, "paused": 0}
    assert families["explsched_gpus_waited_for"].samples[0].value == 4
    assert families["explsched_policy_info"].samples[0].labels == {"policy": "srsf"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert not {word for word in ("ada", "bob", "digits") if word in path.read_text()}


def metric(tmp_path: Path, name: str) -> float:
    """The value of a metric without labels that was published last."""
    text = (tmp_path / "state" / METRICS_FILE).read_text()
    (family,) = (one for one in text_string_to_metric_families(text) if one.name == name)
    return family.samples[0].value


SWEEP = "explsched:sweep=digits"
ARRAY = {"array_job_id": 60, "reason": "Priority"}


def test_gpus_are_waited_for_by_jobs_that_slurm_would_start(tmp_path: Path) -> None:
    """The alert for idle GPUs fired while all that waited was held."""
    waits_for_more = (
        record(61, reason="JobHeldUser", priority=0, eligible_s=None),
        record(62, reason="JobHeldAdmin", priority=0, eligible_s=None),
        record(63, reason="DependencyNeverSatisfied", eligible_s=None),
        record(64, reason="BeginTime", eligible_s=NOW_S + 3600),
        record(65, reason="None", eligible_s=NOW_S + 3600),
        record(66, reason="QOSMaxGRESPerUser"),
    )
    _ = published(tmp_path, jobs=waits_for_more)
    assert metric(tmp_path, "explsched_gpus_waited_for") == 0
    assert metric(tmp_path, "explsched_jobs_waiting") == 6
    _ = published(tmp_path, jobs=(*waits_for_more, record(60, array_tasks=3, **ARRAY), record(67, reason="Resources")))
    assert metric(tmp_path, "explsched_gpus_waited_for") == 16


def test_each_task_of_an_array_that_waits_is_a_job(tmp_path: Path) -> None:
    """As sdiag counts them: once they run they are one each."""
    state = published(tmp_path, jobs=(record(60, array_tasks=90, comment=SWEEP, **ARRAY),))
    assert metric(tmp_path, "explsched_jobs_waiting") == state.samples[-1].waiting == 90
    text = (tmp_path / "state" / METRICS_FILE).read_text()
    assert 'explsched_trainings{state="waiting"} 90.0' in text.splitlines()


def test_a_running_job_reports_also_if_no_sweep_asks_for_it(tmp_path: Path) -> None:
    jobs = [running(number, uid=os.geteuid(), comment=comment) for number, comment in ((71, ""), (72, SWEEP), (73, ""))]
    (tmp_path / "spool").mkdir()
    for job in jobs[:2]:
        line = {"time_s": NOW_S - 30, "step": 1, "metric": "accuracy", "value": 0.5}
        (tmp_path / "spool" / f"{job.job_id}.jsonl").write_text(json.dumps(line) + "\n")
    _ = published(tmp_path, jobs=tuple(jobs))
    assert (metric(tmp_path, "explsched_jobs_reporting"), metric(tmp_path, "explsched_jobs_running")) == (2, 3)


def test_gpu_hours_are_those_held_in_each_run(tmp_path: Path) -> None:
    """An elastic job had eight GPUs in its first run and has one now; another has all of a node and asked for one."""
    former = {"start": NOW_S - 10_800, "end": NOW_S - 7200}
    (tmp_path / "spool").mkdir()
    lines = [{"time_s": time_s, "restart": 0, "event": event} for event, time_s in former.items()]
    (tmp_path / "spool" / "74.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    preempted = f"explsched-preemption:since=0&n=1&lost=0&p=0%2C{NOW_S - 7200:.0f}%2C8%2C0%2Cgrows"
    held = {"gpus": 1, "gpus_per_node": 1, "start_s": NOW_S - 3600, "uid": os.geteuid()}
    elastic = running(74, restarts=1, admin_comment=preempted, gpu_nodes=(("n1", 1),), **held)
    alone = running(75, exclusive="NODE", gpu_nodes=(("n2", 4),), **held)
    state = published(tmp_path, jobs=(elastic, alone))
    assert {row.jobid: row.gpu_hours for row in state.jobs} == {74: 9, 75: 4}


def test_an_array_is_all_of_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = record(60, array_tasks=3, **ARRAY)
    tasks = [running(number, array_job_id=60, array_task_id=number) for number in (68, 69)]
    parts = [running(number, het_job_id=70) for number in (70, 71)]
    ids = {"60_68": 68, "60_5": 60, "70+0": 70}
    monkeypatch.setattr("slurm_plugin.client.cli.CliClient.part", lambda _self, name: ids[name])

    def listed(*ids: str) -> set[int]:
        told = invoke(tmp_path, "status", "--json", "-j", ",".join(ids))
        assert told.exit_code == 0, told.exception
        return {row["jobid"] for row in json.loads(told.stdout)["jobs"]}

    _ = published(tmp_path, jobs=(*JOBS, rest, *tasks, *parts), now_s=time.time())
    assert listed("60") == {60, 68, 69}
    assert listed("69") == {69}
    assert listed("60_68", "41") == {41, 68}
    assert listed("60_5") == {60}
    assert listed("70") == {70, 71}
    assert listed("70+0") == {70}
    _ = published(tmp_path, jobs=tuple(tasks), now_s=time.time())
    assert listed("60") == {68, 69}
    told = invoke(tmp_path, "explain", "60")
    assert str(told.exception).endswith("explain one of them (68, 69)")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("-u", "adda"), "no user 'adda'; did you mean 'ada'? (known: ada, bob)"),
        (("-p", "man"), "no partition 'man'; did you mean 'main'? (known: main)"),
        (("-n", "digit"), "no sweep 'digit'; did you mean 'digits'? (known: digits)"),
        (("-j", "41,99"), "job 99 neither waits nor runs"),
    ],
)
def test_names_that_nothing_has_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], fault: str
) -> None:
    state = published(tmp_path)
    monkeypatch.setattr("slurm_plugin.cli.status.current", lambda _path, *, fresh: state)
    monkeypatch.setattr("slurm_plugin.cli.status.remembered", lambda _config, _prefix: ())
    for more in ((), ("--json",)):
        told = invoke(tmp_path, "status", *words, *more)
        assert (told.exit_code, told.stdout) == (1, "")
        assert str(told.exception).startswith(fault)


def test_a_sweep_that_is_over_is_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, past = published(tmp_path), record(7, comment="explsched:sweep=mnist", state="FAILED")
    monkeypatch.setattr("slurm_plugin.cli.status.current", lambda _path, *, fresh: state)
    monkeypatch.setattr("slurm_plugin.cli.status.remembered", lambda _config, _prefix: (past,))
    told = invoke(tmp_path, "status", "-n", "mnist", "--json")
    assert (told.exit_code, json.loads(told.stdout)["jobs"]) == (0, [])
    assert "no job of it waits or runs: sexplsched sweep show mnist" in told.stderr


def test_my_jobs_are_those_of_my_uid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `runuser` LOGNAME is still the former user's, and in a container the uid may have no account."""
    _ = published(tmp_path, now_s=time.time())
    users = {row["user"] for row in json.loads(invoke(tmp_path, "status", "--json").stdout)["jobs"]}
    monkeypatch.setenv("LOGNAME", users.pop())
    assert json.loads(invoke(tmp_path, "status", "--me", "--json").stdout)["jobs"] == []
    monkeypatch.setattr("os.getuid", lambda: 3_999_999_999)
    assert own_name() == "3999999999"


def test_a_user_who_has_no_job_is_no_mistake(tmp_path: Path) -> None:
    _ = published(tmp_path, now_s=time.time())
    assert json.loads(invoke(tmp_path, "status", "-u", "nobody", "--json").stdout)["jobs"] == []


def test_a_screen_leaves_out_columns_that_tell_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ = published(tmp_path, now_s=time.time())
    whole = invoke(tmp_path, "status").stdout.splitlines()[0].split()
    assert {"STEP", "UTILITY", "PLANNED"} < set(whole)
    monkeypatch.setattr("slurm_plugin.cli.status.room", lambda: 80)
    shown = invoke(tmp_path, "status").stdout.splitlines()
    assert "STEP" not in shown[0]
    assert all(len(line) <= 80 for line in shown)
    assert "STEP" in invoke(tmp_path, "status", "-o", "jobid,step").stdout


@pytest.mark.parametrize("columns", ["jobid:²", "jobid:0", "jobid:-3", "jobid:", "jobid:99999999999999999999", "place"])
def test_a_column_or_width_that_there_is_not_is_named(tmp_path: Path, columns: str) -> None:
    refused = invoke(tmp_path, "status", "-o", columns)
    assert refused.exit_code == 2
    assert f"{columns!r}: accepted are" in refused.stderr


FAULTY = record(51, reason="Priority", comment="explsched:chekpoint=USR1")
HELD = record(52, reason="JobHeldUser", priority=0, site_factor=None)


def test_a_fault_of_its_own_hides_slurms_reason_from_nobody(tmp_path: Path) -> None:
    state = published(tmp_path, jobs=(FAULTY,))
    assert state.jobs[0].reason.startswith("Priority; its options are ignored: unknown key 'chekpoint'")


def test_of_a_held_job_no_site_factor_is_told(tmp_path: Path) -> None:
    held = published(tmp_path, jobs=(HELD,)).explanation(52)
    assert held is not None
    assert "Slurm says: JobHeldUser; priority 0." in held.sentences


def test_a_running_job_that_is_not_steered_is_not_said_to_wait(tmp_path: Path) -> None:
    runs = published(
        tmp_path, jobs=(record(53, state="RUNNING", gpus=0, gpus_per_node=None, reason="None"),)
    ).explanation(53)
    assert runs is not None
    assert runs.sentences == ("Job 53 of ada: RUNNING, left to Slurm because it asks for no GPUs.",)


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        (Topology(dict.fromkeys(("n1", "n2"), (Switch("s1"),))), "Its 2 nodes are near each other, below s1."),
        (
            Topology(fault="a torus"),
            "It gets no reservation, since Slurm chooses its nodes by a network that is not known",
        ),
        (Topology(), "the earliest gap"),
    ],
)
def test_explain_says_how_near_the_nodes_of_a_gang_are(tmp_path: Path, topology: Topology, words: str) -> None:
    nodes = tuple(SlurmNode(name, "IDLE", 4, frozenset({"main"})) for name in ("n1", "n2"))
    holds = record(1, state="RUNNING", start_s=NOW_S, node_names=("n1",), gpu_nodes=(("n1", 4),), time_limit_s=600.0)
    gang = record(2, reason="Resources", natives=(100,), nodes=2, gpus=8, gpus_per_node=4)
    found = ClusterRecords(nodes, (holds, gang), (), topology=topology)
    config = Config(policy="fifo", progress=ProgressSection(spool=tmp_path))
    (told,) = (one for one in explanations(View.of(config, found, NOW_S)) if one.jobid == 2)
    assert any(words in sentence for sentence in told.sentences), told.sentences


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("None", "Slurm has not tested it since"),
        ("Resources", "Slurm can start it in its next cycle"),
        ("Nodes required for job are DOWN, DRAINED or reserved", "Slurm can start it in its next cycle"),
    ],
)
def test_of_a_job_that_slurm_has_tested_it_is_not_said_that_it_has_not(tmp_path: Path, reason: str, words: str) -> None:
    found = ClusterRecords((SlurmNode("n1", "IDLE", 4, frozenset({"main"})),), (record(1, reason=reason),), ())
    config = Config(policy="fifo", progress=ProgressSection(spool=tmp_path))
    (told,) = explanations(View.of(config, found, NOW_S))
    assert any(words in sentence for sentence in told.sentences), told.sentences


WAITS = "It is blocked by jobs that come before it, and starts when they leave room"
ALL_TAKEN = "No job waits before it, but the GPUs that it needs are not free"


@pytest.mark.parametrize(
    ("holder", "before", "said"),
    [
        ({}, (), f"{ALL_TAKEN}."),
        ({}, (record(1, reason="Resources", natives=(200,), time_limit_s=60.0),), f"{WAITS}."),
        ({}, (record(1, reason="Dependency"),), f"{ALL_TAKEN}."),
        (
            {},
            (record(1, reason="Resources", natives=(200,), time_limit_s=60.0, partition="cpu"),),
            f"{ALL_TAKEN}.",
        ),
        ({"comment": "explsched:checkpoint=USR1"}, (), f"{ALL_TAKEN}; job 60 is about to leave."),
        ({"preempted": True}, (), f"{ALL_TAKEN}; job 60 is about to leave."),
        ({"preempted": True}, (record(1, reason="Resources", natives=(200,), time_limit_s=60.0),), f"{WAITS}."),
        ({"preempted": True, "state": "COMPLETING"}, (), f"{ALL_TAKEN}; job 60 is about to leave."),
    ],
)
def test_explain_says_what_a_waiting_job_waits_for_and_who_leaves(
    tmp_path: Path, holder: dict[str, Any], before: tuple[SlurmJob, ...], said: str
) -> None:
    """By its comment job 60 leaves in the present plan, else Slurm has asked it to leave, or it is at its end."""
    node = SlurmNode("n1", "ALLOCATED", 4, frozenset({"main"}))
    held = {"state": "RUNNING", "start_s": 1.0, "node_names": ("n1",), "gpu_nodes": (("n1", 4),)}
    runs = record(60, **{**held, "gpus": 4, "gpus_per_node": 4, "time_limit_s": 2 * NOW_S, **holder})
    waits = record(61, reason="Resources", natives=(100,), time_limit_s=3600.0, submit_s=NOW_S - 60)
    config = Config(policy="srsf", progress=ProgressSection(spool=tmp_path))
    view = View.of(config, ClusterRecords((node,), (runs, waits, *before), ()), NOW_S)
    (told,) = (one for one in explanations(view) if one.jobid == 61)
    assert said in told.sentences, told.sentences


@pytest.mark.parametrize(
    ("fields", "short"),
    [
        ({"nodes": 2, "gpus": 8}, "Of the nodes that suit it 1 is usable now, and it needs 2."),
        ({"nodes": 2, "gpus": 8, "features": "fast"}, "Of the nodes that suit it 0 are usable now, and it needs 2."),
        ({"nodes": 1, "gpus": 8, "gpus_per_node": None}, "The nodes that suit it and are usable now have 4 GPUs"),
        ({"nodes": 1, "gpus": 4}, ""),
        ({"nodes": 1, "gpus": 4, "gpus_per_node": None}, ""),
    ],
)
@pytest.mark.parametrize(("behind", "otherwise"), [(0, f"{ALL_TAKEN}."), (1, f"{WAITS}.")])
def test_explain_says_that_nodes_are_down_where_the_end_of_no_job_would_help(
    tmp_path: Path, fields: dict[str, Any], short: str, behind: int, otherwise: str
) -> None:
    fast = frozenset({"fast"})
    states = ("ALLOCATED", "IDLE+FAIL", "DOWN+REBOOT_ISSUED")
    first, *down = [
        SlurmNode(f"n{n}", state, 4, frozenset({"main"}), features=fast) for n, state in enumerate(states, 1)
    ]
    nodes = (replace(first, features=frozenset()), *down)
    held = {"state": "RUNNING", "start_s": 1.0, "node_names": ("n1",), "gpu_nodes": (("n1", 4),)}
    runs = record(60, **{**held, "gpus": 4, "gpus_per_node": 4, "time_limit_s": 2 * NOW_S})
    waits = record(
        61, **{"reason": "Resources", "natives": (100,), "submit_s": NOW_S - 60, "gpus_per_node": 4, **fields}
    )
    before = (record(1, reason="Resources", natives=(200,), time_limit_s=60.0),) * behind
    config = Config(policy="srsf", progress=ProgressSection(spool=tmp_path))
    view = View.of(config, ClusterRecords(nodes, (runs, waits, *before), ()), NOW_S)
    (told,) = (one for one in explanations(view) if one.jobid == 61)
    assert any(sentence.startswith(short or otherwise) for sentence in told.sentences), told.sentences


@pytest.mark.parametrize(
    ("tiers", "fields", "said"),
    [
        ({"main": 1, "long": 1}, {}, f"{ALL_TAKEN}."),
        ({"main": 1, "long": 2}, {}, "The GPUs that it needs are not free, and job 1 in long may come before it."),
        ({"main": 1}, {}, "The GPUs that it needs are not free, and job 1 in long may come before it."),
        ({"main": 1}, {"reason": "Dependency"}, f"{ALL_TAKEN}."),
        ({"main": 1}, {"partition": "cpu"}, f"{ALL_TAKEN}."),
    ],
)
def test_explain_names_a_job_of_another_partition_that_may_come_first(
    tmp_path: Path, tiers: dict[str, int], fields: dict[str, Any], said: str
) -> None:
    """Nobody is preempted for a job while another one may take what comes free."""
    node = SlurmNode("n1", "ALLOCATED", 4, frozenset({"main", "long"}))
    held = {"state": "RUNNING", "start_s": 1.0, "node_names": ("n1",), "gpu_nodes": (("n1", 4),)}
    runs = record(60, **{**held, "gpus": 4, "gpus_per_node": 4, "time_limit_s": 2 * NOW_S})
    waits = record(61, reason="Resources", natives=(100,), priority=100, time_limit_s=3600.0, submit_s=NOW_S - 60)
    other = record(1, **{"reason": "Resources", "natives": (50,), "priority": 50, "partition": "long", **fields})
    config = Config(policy="srsf", progress=ProgressSection(spool=tmp_path))
    view = View.of(config, ClusterRecords((node,), (runs, waits, other), (), tiers=tiers), NOW_S)
    (told,) = (one for one in explanations(view) if one.jobid == 61)
    assert said in told.sentences, told.sentences


def test_explain_says_that_an_arrays_own_limit_holds_it_back(tmp_path: Path) -> None:
    array = {"array_job_id": 61, "array_tasks": 3, "array_limit": 1, "reason": "JobArrayTaskLimit", "site_factor": None}
    task = record(62, state="RUNNING", array_job_id=61, array_task_id=0, start_s=1.0, node_names=("n1",))
    config = Config(policy="srsf", progress=ProgressSection(spool=tmp_path))
    for tasks, until in (((task,), "one has ended"), ((), "Slurm has tested it again")):
        view = View.of(config, ClusterRecords((), (record(61, **array), *tasks), ()), NOW_S)
        (told,) = (one for one in explanations(view) if one.jobid == 61)
        assert any(f"not planned until {until}" in sentence for sentence in told.sentences), told.sentences


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Priority", "until one has ended."),
        *((why, "Slurm would not start it now") for why in ("JobHeldUser", "Dependency")),
    ],
)
def test_explain_names_an_arrays_own_limit_only_where_nothing_else_holds_it_back(
    tmp_path: Path, reason: str, said: str
) -> None:
    array = {"array_job_id": 61, "array_tasks": 3, "array_limit": 1, "reason": reason, "site_factor": None}
    task = record(62, state="RUNNING", array_job_id=61, array_task_id=0, start_s=1.0, node_names=("n1",))
    config = Config(policy="srsf", progress=ProgressSection(spool=tmp_path))
    view = View.of(config, ClusterRecords((), (record(61, **array), task), ()), NOW_S)
    (told,) = (one for one in explanations(view) if one.jobid == 61)
    assert any(said in sentence for sentence in told.sentences), told.sentences


@pytest.mark.parametrize(
    ("gang", "end"),
    [
        ({"nodes": 2, "gpus": 8}, ", unless it keeps them for job 2, which comes before it."),
        ({"nodes": 2, "gpus": 8, "partition": "other"}, "."),
        ({"nodes": 2, "gpus": 8, "reason": "Dependency"}, "."),
        ({"nodes": 3, "gpus": 12}, "."),  # after all that fit, since the end of no single job makes room for it
        ({"nodes": 1, "gpus": 4}, "."),  # starts itself
    ],
    ids=str,
)
def test_explain_says_for_whom_slurm_may_keep_free_gpus(tmp_path: Path, gang: dict[str, Any], end: str) -> None:
    """Whatever the policy reserves, Slurm's backfill plans a start for each job that comes first in its queue."""
    nodes = tuple(SlurmNode(f"n{n}", "IDLE", 4, frozenset({"main"})) for n in range(1, 5))
    held = {"state": "RUNNING", "start_s": NOW_S, "gpus": 4, "gpus_per_node": 4, "time_limit_s": 36_000.0}
    runs = [record(n, node_names=(f"n{n}",), gpu_nodes=((f"n{n}", 4),), **held) for n in (1, 3, 4)]
    new = {"submit_s": NOW_S - 60, "reason": "Resources"}
    before = record(2, **{**new, "gpus_per_node": 4, "time_limit_s": 60.0, "natives": (200,), **gang})
    fits = record(5, **{**new, "gpus": 1, "gpus_per_node": 1, "time_limit_s": 1200.0, "natives": (100,)})
    more = (SlurmNode("n5", "IDLE", 1, frozenset({"main"})),) if before.nodes == 1 else ()
    config = Config(policy="srsf", progress=ProgressSection(spool=tmp_path))
    view = View.of(config, ClusterRecords((*nodes, *more), (*runs, before, fits), ()), NOW_S)
    (told,) = (one for one in explanations(view) if one.jobid == 5)
    (said,) = (sentence for sentence in told.sentences if "next cycle" in sentence)
    assert said.endswith(f"Slurm can start it in its next cycle{end}")


def test_a_job_without_a_time_limit_is_said_to_have_none(tmp_path: Path) -> None:
    assert published(tmp_path, jobs=(record(55, time_limit_s=None),)).jobs[0].reason == "Priority; no time limit"


def test_a_job_that_the_policy_does_not_rank_is_explained(tmp_path: Path) -> None:
    config = Config(policy="fifo", progress=ProgressSection(spool=tmp_path))
    ranked = View.of(config, ClusterRecords((), (record(1), record(2)), ()), NOW_S)
    some = Plan(scores=(Score(2, 1.0, "ranked"),))
    told = [one.sentences for one in explanations(View.planned(config, ranked.seen, some))]
    ranks = [next(sentence for sentence in one if sentence.startswith("Rank")) for one in told]
    assert ranks == [
        "Rank 2 of 2 under policy fifo: policy fifo does not rank it.",
        "Rank 1 of 2 under policy fifo: ranked.",
    ]


JUST_NOW = f"explsched-preemption:since=50&n=0&lost=0&p=0,{NOW_S:.0f},4,120,because"


def test_a_suspended_job_is_not_told_as_one_that_works(tmp_path: Path) -> None:
    held = record(56, state="SUSPENDED", start_s=NOW_S - 60, node_names=("n1",), gpu_nodes=(("n1", 1),))
    state = published(tmp_path, jobs=(held,))
    assert (state.jobs[0].state, state.jobs[0].reason.split(";")[0]) == ("RUNNING", "SUSPENDED")
    explanation = state.explanation(56)
    assert explanation is not None
    assert explanation.sentences[1] == "Slurm says: SUSPENDED; it holds its GPUs, but does not run."


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "It may be preempted after SIGUSR1."),
        ({"requeues": False}, "It may not be preempted."),
        ({"het_job_id": 57}, "but is not preempted now: Slurm requeues all components"),
        ({"state": "SUSPENDED"}, "but is not preempted now: no signal reaches its script while it is SUSPENDED."),
        ({"deadline_s": NOW_S + 1e6}, "before its --deadline."),
        ({"restarts": 1, "admin_comment": JUST_NOW}, "but is not preempted now: at most 1 times an hour, 3 in all."),
    ],
)
def test_explain_says_whether_a_job_is_preempted_and_why_not(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    runs = record(57, **{"state": "RUNNING", "start_s": NOW_S - 60, "comment": "explsched:checkpoint=USR1", **fields})
    config = Config(
        progress=ProgressSection(spool=tmp_path),
        preemption=PreemptionSection(max_per_job_per_hour=1, max_per_job=3),
    )
    (told,) = explanations(View.of(config, ClusterRecords((), (runs,), ()), NOW_S))
    assert any(said in sentence for sentence in told.sentences), told.sentences
