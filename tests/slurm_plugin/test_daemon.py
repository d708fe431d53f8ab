"""The life of the daemon: what ends a pass does not end it, signals are obeyed, and it leaves nothing behind."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from explsched.errors import PolicyError, SlurmUnreachableError
from explsched.preemption_record import Interruption, PreemptionRecord
from sched_policy import catalog
from sched_policy.plan import Plan, Preemption
from sched_policy.policy import SchedulingPolicy
from sched_policy.snapshot import Snapshot
from slurm_plugin import sighting
from slurm_plugin.client.capabilities import Capabilities
from slurm_plugin.client.changes import Change, RequeueJob, SignalJob, StartAtOnce, TargetJob
from slurm_plugin.client.records import ControllerLoad, SlurmJob
from slurm_plugin.daemon import command
from slurm_plugin.instance.claim import CLAIM, claimed_by
from slurm_plugin.instance.heartbeat import HEARTBEATS, Beat, Heartbeat
from slurm_plugin.instance.holder import AnotherDaemonError, Holder
from slurm_plugin.loop import Daemon
from slurm_plugin.state.metrics import METRICS_FILE
from slurm_plugin.state.published import read
from slurm_plugin.steering.controller import Controller, Pass
from tests.slurm_kit import NOW_S, FakeSlurm, record

OBEYED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


ALPHA = {"ClusterName": "alpha", "SlurmctldPort": str(os.getpid())}
"""Of this test process: others on this host may steer a cluster of that name meanwhile."""


@dataclass
class Eventful(FakeSlurm):
    """Something happens at each look at its load; after the last event the daemon is told to stop."""

    events: list[Callable[[], None]] = field(default_factory=list)

    def load(self) -> ControllerLoad:
        if not self.events:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().load()
        self.events.pop(0)()
        return super().load()


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """A configuration file for quick passes; the signals are as before afterwards."""
    path = tmp_path / "explsched.yaml"
    order = f"{{scope: partition, site_factor_file: {tmp_path}/site_factors.json}}"
    files = f"progress: {{spool: {tmp_path}}}\norder: {order}\naudit: {{file: {tmp_path}/audit.jsonl}}\n"
    files += f"state: {{directory: {tmp_path}/state}}\n"
    path.write_text(f"policy: fifo\ninterval_s: 0.001\n{files}")
    before = {number: signal.getsignal(number) for number in OBEYED}
    yield path
    for number, handler in before.items():
        signal.signal(number, handler)


def lived(slurm: FakeSlurm, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a daemon until it is told to stop."""
    monkeypatch.setattr("slurm_plugin.loop.choose", lambda _name, _timeout_s: slurm)
    Daemon(config, "info", None).run()


def lived_once(slurm: FakeSlurm, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.loop.choose", lambda _name, _timeout_s: slurm)
    assert Daemon(config, "info", None).once() == 0


def fails(error: Exception) -> Callable[[], None]:
    def event() -> None:
        raise error

    return event


def test_no_failure_of_a_pass_ends_the_daemon(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [SlurmUnreachableError("nobody answers"), PolicyError("cannot be"), RuntimeError("a defect")]
    slurm = Eventful((record(5),), events=[fails(error) for error in errors])
    lived(slurm, config, monkeypatch)
    assert slurm.events == []
    assert len(slurm.applied[0]) == 1  # the pass after them puts the job in order
    assert caplog.text.count("pass given up, will try again") == 2
    assert "pass failed, will try again" in caplog.text


def test_a_pass_knows_how_far_apart_passes_are_while_slurmctld_is_busy(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was due since the pass before is not late."""
    config.write_text(f"{config.read_text()}backpressure: {{max_interval_s: 0.004}}\n")
    slurm, told_s = Eventful((record(5),), events=[lambda: None] * 5), []
    monkeypatch.setattr(slurm, "load", lambda: replace(Eventful.load(slurm), server_threads=10_000))
    reconcile = Controller.reconcile

    def noted(self: Controller, now_s: float, interval_s: float) -> Pass:
        told_s.append(interval_s)
        return reconcile(self, now_s, interval_s)

    monkeypatch.setattr(Controller, "reconcile", noted)
    lived(slurm, config, monkeypatch)
    assert set(told_s) == {0.004}


def test_a_slurmctld_that_stays_away_is_told_once(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "explsched.daemon")
    away = fails(SlurmUnreachableError("nobody answers"))
    slurm = Eventful((record(5),), events=[away, away, away, lambda: None, lambda: None, away])
    lived(slurm, config, monkeypatch)
    told = [one.getMessage() for one in caplog.records if one.name == "explsched.daemon"]
    given_up = 'pass given up, will try again why="nobody answers"'
    again = "passes are made again"
    assert [one for one in told if one in (given_up, again)] == [given_up, again, given_up, again]


def test_a_spool_that_hangs_does_not_keep_the_daemon_from_starting(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def hang(*_: object) -> str:
        answers.wait()
        return ""

    monkeypatch.setattr("slurm_plugin.sighting.group_fault", hang)
    monkeypatch.setattr("slurm_plugin.loop.PATIENCE_S", 0.05)
    slurm = Eventful((record(5),), events=[])
    lived(slurm, config, monkeypatch)
    assert len(slurm.applied[0]) == 1
    answers.set()


def test_passes_that_fail_are_counted_while_none_succeeds(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert for failed passes came when they succeeded again."""
    seen = []

    def look_and_fail() -> None:
        text = (tmp_path / "state" / METRICS_FILE).read_text().splitlines()
        seen.append(
            [line.split()[1] for line in text if line.startswith(("explsched_failed_passes_total", "explsched_gpus "))]
        )
        raise SlurmUnreachableError("nobody answers")

    nothing = [lambda: None] * 2  # before the pass, and before it writes
    events = [fails(SlurmUnreachableError("not yet")), *nothing, *[look_and_fail] * 3]
    slurm = Eventful((record(5),), events=events)
    lived(slurm, config, monkeypatch)
    assert seen == [["1.0", "16.0"], ["2.0", "16.0"], ["3.0", "16.0"]]


def test_a_pass_that_fails_takes_nothing_back_that_was_counted(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the number of audit entries that were lost going down and up again, the alert for a new one came."""
    (tmp_path / "audit.jsonl").mkdir()  # what is no file can have no entry
    seen = []

    def look(and_then: Callable[[], None]) -> Callable[[], None]:
        def event() -> None:
            text = (tmp_path / "state" / METRICS_FILE).read_text().splitlines()
            seen.append([line for line in text if line.startswith("explsched_audit_faults_total ")])
            and_then()

        return event

    nothing = [lambda: None] * 2  # before the pass, and before it writes
    fail = fails(SlurmUnreachableError("nobody answers"))
    lived(Eventful((record(5),), events=[*nothing, look(fail), look(lambda: None)]), config, monkeypatch)
    assert seen == [["explsched_audit_faults_total 1.0"]] * 2


@pytest.mark.parametrize(
    ("told_s", "ahead"),
    [(1000.0, 0.0), (999.0, 0.0), (1002.0, 0.0), (0.0, 0.0), (990.0, 12.5), (1060.0, -57.5)],
)
def test_how_far_our_clock_is_ahead_of_slurms(told_s: float, ahead: float) -> None:
    """Asked at 1000.0, and answered at 1002.5 by our clock."""
    assert ControllerLoad(1, 0.0, 0.0, 0, time_s=told_s).ahead_s(1000.0, 1002.5) == ahead


def test_jobs_are_compared_with_slurms_clock(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A requeued job fails if it is started before its node takes it again."""
    requeued_s = time.time() - 60.0
    consents = {"comment": "explsched:checkpoint=USR1", "restarts": 1, "eligible_s": requeued_s + 120}
    ended_by_daemon = PreemptionRecord(0.0).plus(Interruption(0, requeued_s, 4, 0.0, "")).text()
    job = record(5, submit_s=requeued_s, site_factor=500_000, admin_comment=ended_by_daemon, **consents)
    for of_slurm_s in (requeued_s + 1, requeued_s + 30):
        slurm = Eventful((job,))
        monkeypatch.setattr(slurm, "load", lambda s=slurm, t=of_slurm_s: replace(Eventful.load(s), time_s=t))
        lived(slurm, config, monkeypatch)
        starts = [change for changes in slurm.applied for change in changes if isinstance(change, StartAtOnce)]
        assert starts == [StartAtOnce(5)] * (of_slurm_s > requeued_s + 10)


@pytest.mark.parametrize("behind_s", [400.0, -400.0])
def test_the_age_of_the_state_does_not_depend_on_slurms_clock(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind_s: float
) -> None:
    """Commands took a fresh state for an old one, or that of a daemon that had ended for a fresh one."""
    slurm, began_s = Eventful((record(5),), events=[lambda: None]), time.time()
    monkeypatch.setattr(slurm, "load", lambda: replace(Eventful.load(slurm), time_s=time.time() - behind_s))
    lived(slurm, config, monkeypatch)
    state = read(tmp_path / "state")
    assert state is not None
    assert began_s - 1 <= state.written_s <= time.time()


def test_a_daemon_that_stops_lets_go_of_its_pins(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = record(5, admin_comment="explsched-group:node=n1&since=5", required_nodes=("n1",), site_factor=500_000)
    slurm = Eventful((pinned,))
    lived(slurm, config, monkeypatch)
    assert slurm.applied[-1] == (TargetJob(5, (), ""),)


def test_slurms_absence_does_not_keep_it_from_stopping(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = Eventful()
    monkeypatch.setattr(slurm, "jobs", fails(SlurmUnreachableError("nobody answers")))
    lived(slurm, config, monkeypatch)
    assert "pins stay, and leases until two minutes after their planned start" in caplog.text


def test_a_good_configuration_is_reloaded_and_a_bad_one_is_not(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "explsched")
    good = config.read_text()

    def reload(text: str) -> Callable[[], None]:
        def event() -> None:
            config.write_text(text)
            os.kill(os.getpid(), signal.SIGHUP)

        return event

    elsewhere = good.replace("site_factors.json", "elsewhere.json")
    slurm = Eventful(events=[reload(good.replace("fifo", "srsf")), reload("polcy: fifo"), reload(elsewhere)])
    lived(slurm, config, monkeypatch)
    assert "site_factors.json until the daemon stops, found " in caplog.text  # what it remembers stays where it is
    assert 'configuration reloaded policy="srsf"' in caplog.text
    assert "configuration not reloaded, the old one stays in force" in caplog.text


def test_a_reload_takes_how_slurm_is_asked_and_how_the_audit_file_is_rotated(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    later, asked_for_s = Eventful((record(6),), events=[lambda: None]), []

    def choose(_name: str, timeout_s: float) -> FakeSlurm:
        asked_for_s.append(timeout_s)
        return later

    def reload() -> None:
        text = config.read_text().replace("audit.jsonl}", "audit.jsonl, max_mib: 0.0001}")
        config.write_text(f"{text}slurm: {{timeout_s: 7}}\n")
        monkeypatch.setattr("slurm_plugin.loop.choose", choose)
        os.kill(os.getpid(), signal.SIGHUP)

    lived(Eventful((record(5),), events=[lambda: None, reload]), config, monkeypatch)
    assert asked_for_s == [7]
    assert any(later.applied)  # its passes were made by that one
    assert (tmp_path / "audit.jsonl.1").exists()


def test_of_a_configuration_whose_policy_cannot_be_made_nothing_is_taken(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = catalog.build

    def build(name: str, options: catalog.PolicyOptions | None = None) -> SchedulingPolicy:
        if name == "srsf":  # as a package's policy may
            raise PolicyError("these options do not suit it")
        return made(name, options)

    def reload() -> None:
        config.write_text(config.read_text().replace("fifo", "srsf"))
        os.kill(os.getpid(), signal.SIGHUP)

    told: list[str] = []
    monkeypatch.setattr(catalog, "build", build)
    monkeypatch.setattr("slurm_plugin.loop.notify", lambda *assignments: told.extend(assignments))
    lived(Eventful(events=[reload, lambda: None]), config, monkeypatch)
    assert "configuration not reloaded, the old one stays in force" in caplog.text
    statuses = {text.partition(",")[0] for text in told if text.startswith("STATUS=")}
    assert statuses == {"STATUS=policy fifo"}


def test_a_second_daemon_changes_nothing_and_names_the_first(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Eventful((record(5),)), FakeSlurm((record(5),))

    def meanwhile() -> None:
        handlers = {number: signal.getsignal(number) for number in OBEYED}
        monkeypatch.setattr("slurm_plugin.loop.choose", lambda _name, _timeout_s: second)
        for start in (lambda: Daemon(config, "info", None).run(), Daemon(config, "info", None).once):
            with pytest.raises(AnotherDaemonError, match=f"pid {os.getpid()} on host .*, since "):
                start()
        assert Daemon(config, "info", None).dry_run() != ""
        for number, handler in handlers.items():  # the second would be another process
            signal.signal(number, handler)

    first.events = [meanwhile]
    lived(first, config, monkeypatch)
    assert second.applied == []
    assert Daemon(config, "info", None).once() == 0  # the first has ended
    assert len(second.applied) == 1


@pytest.mark.parametrize("key", ["order.site_factor_file", "state.directory"])
def test_what_one_cluster_keeps_is_no_other_clusters(
    key: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job 19 of the second would have the site factor, or be requeued for the preemption, of job 19 of the first."""
    (tmp_path / "site_factors.json").write_text("{}")  # of a release that did not say whose they are
    (tmp_path / "state").mkdir()
    first = FakeSlurm((record(5),), settings={"ClusterName": "alpha", "SlurmctldHost[0]": "here"})
    lived_once(first, config, monkeypatch)
    first.settings["SlurmctldHost[0]"] = "there"
    lived_once(first, config, monkeypatch)

    text = config.read_text().replace(f"spool: {tmp_path}", f"spool: {tmp_path}/spool")
    (tmp_path / "spool").mkdir()
    if key == "state.directory":
        text = text.replace(f"{tmp_path}/site_factors", f"{tmp_path}/spool/site_factors")
    config.write_text(text)
    second = FakeSlurm((record(5),), settings={"ClusterName": "beta"})
    with pytest.raises(AnotherDaemonError, match=f"belongs to cluster alpha, and this is beta; set {key} of each"):
        lived_once(second, config, monkeypatch)
    assert second.applied == []
    for claim in (tmp_path / CLAIM, tmp_path / "state" / CLAIM):  # as the message says
        claim.unlink()
    lived_once(second, config, monkeypatch)


def taken(key: str, own: str, theirs: Path) -> str:
    """A configuration with a directory as `key` that another cluster has."""
    theirs.mkdir()
    if key == "state.directory":
        (theirs / CLAIM).write_text("beta\n")
        return re.sub("directory: .*/state", f"directory: {theirs}", own)
    Heartbeat(theirs, "beta", Holder("another host", 1, 0.0)).beat(3600.0)
    return re.sub("spool: [^}]*", f"spool: {theirs}", own)


def reloading(config: Path, text: str) -> Callable[[], None]:
    def event() -> None:
        config.write_text(text)
        os.kill(os.getpid(), signal.SIGHUP)

    return event


@pytest.mark.parametrize("key", ["state.directory", "progress.spool"])
def test_a_reload_takes_nothing_of_another_cluster(
    key: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the daemon, and systemd could not start it again."""
    caplog.set_level(logging.INFO, "explsched")
    own, theirs = config.read_text(), tmp_path / "theirs"
    foreign, good = reloading(config, taken(key, own, theirs)), reloading(config, own.replace("fifo", "srsf"))
    there = set(theirs.iterdir())
    slurm = Eventful((record(5),), settings=ALPHA, events=[lambda: None, foreign, good, lambda: None])
    lived(slurm, config, monkeypatch)
    assert f'configuration not reloaded, the old one stays in force why="{theirs}: ' in caplog.text
    assert f"set {key} of each cluster to a directory of its own" in caplog.text
    assert 'configuration reloaded policy="srsf"' in caplog.text
    assert set(theirs.iterdir()) == there


@pytest.mark.parametrize("key", ["state.directory", "progress.spool"])
def test_nor_does_a_second_reload_while_slurm_is_away(
    key: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "explsched")
    own = config.read_text()
    foreign, good = (
        reloading(config, taken(key, own, tmp_path / "theirs")),
        reloading(config, own.replace("fifo", "srsf")),
    )
    second = [foreign]

    class Away(Eventful):
        def capabilities(self) -> Capabilities:
            if second and "configuration reloaded" in caplog.text:
                second.pop()()
                raise SlurmUnreachableError("nobody answers")
            return super().capabilities()

    slurm = Away((record(5),), settings=ALPHA, events=[lambda: None, good, lambda: None])
    lived(slurm, config, monkeypatch)
    assert not second
    assert slurm.events == []
    assert f"set {key} of each cluster to a directory of its own" in caplog.text


def test_a_directory_that_the_daemon_makes_is_its_clusters(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster's daemon would claim it, and keep this one from its next start."""
    slurm = Eventful((record(5),), settings=ALPHA, events=[lambda: None, lambda: None])
    lived(slurm, config, monkeypatch)
    assert claimed_by(tmp_path / "state") == "alpha"


def test_a_directory_that_cannot_be_claimed_keeps_no_daemon_from_its_work_and_is_claimed_once_it_can(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle = tmp_path / "state" / CLAIM
    obstacle.mkdir(parents=True)
    events = [lambda: None, lambda: None, obstacle.rmdir, lambda: None]
    slurm = Eventful((record(5),), settings=ALPHA, events=events)
    lived(slurm, config, monkeypatch)
    assert len(slurm.applied[0]) == 1
    told = f'directory not claimed for this cluster key="state.directory" why="{tmp_path}/state: Is a'
    assert caplog.text.count(told) == 1
    assert claimed_by(tmp_path / "state") == "alpha"


def test_a_daemon_that_another_host_has_taken_over_from_stops_steering(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Eventful((record(5),))
    other = Holder("another host", 1, 0.0)

    def taken_over() -> None:
        (path,) = (tmp_path / HEARTBEATS).iterdir()
        path.write_bytes(msgspec.json.encode(Beat(other, 60.0)))

    slurm.events = [taken_over, lambda: None]  # before the pass, and before it writes
    with pytest.raises(AnotherDaemonError, match="on host another host"):
        lived(slurm, config, monkeypatch)
    assert len(slurm.applied) == 1


def test_while_nobody_tells_which_cluster_it_is_nothing_is_steered(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = Eventful((record(5),))
    answers = iter([fails(SlurmUnreachableError("nobody answers"))] * 2)

    def capabilities() -> Capabilities:
        next(answers, lambda: None)()
        return FakeSlurm.capabilities(slurm)

    monkeypatch.setattr(slurm, "capabilities", capabilities)
    slurm.events = [lambda: None]
    lived(slurm, config, monkeypatch)
    assert "not steering yet, will try again" in caplog.text
    assert "pass given up, will try again" in caplog.text
    assert len(slurm.applied) >= 1


def test_a_signal_while_slurmctld_does_not_answer_yet_is_obeyed(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "explsched")
    signal.signal(
        signal.SIGHUP, lambda *_: caplog.records.clear()
    )  # else it would end the tests where it is not obeyed
    slurm = Eventful((record(5),))

    def capabilities() -> Capabilities:
        monkeypatch.undo()
        os.kill(os.getpid(), signal.SIGHUP)
        raise SlurmUnreachableError("nobody answers")

    monkeypatch.setattr("slurm_plugin.loop.choose", lambda _name, _timeout_s: slurm)
    daemon = Daemon(config, "info", None)
    monkeypatch.setattr(slurm, "capabilities", capabilities)
    daemon.run()
    assert "configuration reloaded" in caplog.text


def test_signals_while_it_starts_are_obeyed_once_it_can(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A rotation of the log, or a reload, ended it."""
    caplog.set_level(logging.INFO, "explsched")
    early, opened = [], []
    for number in OBEYED[2:]:
        signal.signal(number, lambda number, _frame: early.append(number))  # else they would end the tests

    def choose(_name: str, _timeout_s: float) -> FakeSlurm:
        for number in OBEYED[2:]:  # to this thread: others of the tests do not block them
            signal.pthread_kill(threading.get_ident(), number)
        monkeypatch.setattr("slurm_plugin.loop.choose", lambda *_: slurm)
        return slurm

    slurm = Eventful((record(5),), events=[lambda: None])
    monkeypatch.setattr("slurm_plugin.loop.choose", choose)
    monkeypatch.setattr("explsched.log.set_up", lambda *to: opened.append(to))
    assert CliRunner().invoke(command, ["--config", str(config), "--log-file", "log"]).exception is None
    assert (early, opened) == ([], [("info", "log")] * 2)
    assert "configuration reloaded" in caplog.text


def test_signals_wait_before_what_takes_long_to_import_is_imported() -> None:
    code = "import sys, slurm_plugin.daemon; print(*sorted({'numpy', 'slurm_plugin.loop'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


def test_an_error_at_the_start_names_the_program_and_the_file(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "slurm_plugin.daemon", "--config", str(tmp_path / "none.yaml"), "--dry-run"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"sexplschedd: error: {tmp_path}/none.yaml: cannot be read: No such file or directory\n"


def test_a_log_that_cannot_be_opened_is_named_at_the_start_and_kept_at_a_reopening(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = str(tmp_path / "none" / "log")
    argv = [sys.executable, "-m", "slurm_plugin.daemon", "--config", str(config), "--dry-run", "--log-file", nowhere]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        f"sexplschedd: error: log file {nowhere}: No such file or directory\n",
    )
    slurm = Eventful(events=[lambda: os.kill(os.getpid(), signal.SIGUSR2), lambda: None])
    monkeypatch.setattr("slurm_plugin.loop.choose", lambda _name, _timeout_s: slurm)
    Daemon(config, "info", nowhere).run()
    assert not slurm.events  # it went on after it


def test_status_sees_a_daemon_as_long_as_it_runs(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[sighting.Sighting | None] = []
    lived(Eventful(events=[lambda: seen.append(sighting.last_heartbeat(tmp_path))]), config, monkeypatch)
    assert [found.holder.pid for found in seen if found] == [os.getpid()]
    assert sighting.last_heartbeat(tmp_path) is None


@dataclass
class Clock:
    """The daemon's clock, which a rest sets forward; after a day of passes it fails."""

    since_s: float = 0.0

    def monotonic(self) -> float:
        return self.since_s

    def time(self) -> float:
        return NOW_S + self.since_s

    def rest(self, until_s: float) -> None:
        self.since_s = until_s
        assert until_s < 86_400.0


class Leaving(msgspec.Struct):
    """A policy that preempts all it may for job 7."""

    name: str = "leaving"
    summary: str = ""
    needs_durations: bool = False

    def plan(self, snapshot: Snapshot) -> Plan:
        if not any(job.job_id == 7 and job.may_displace for job in snapshot.jobs):
            return Plan()
        return Plan(preemptions=tuple(Preemption(one.job_id, "", 7) for one in snapshot.running if one.is_preemptible))


def training(job_id: int, node: str) -> SlurmJob:
    """A training that may be preempted."""
    where = {"gpu_nodes": ((node, 4),), "node_names": (node,), "requeues": True}
    since = {"submit_s": NOW_S - 3000, "eligible_s": NOW_S - 3000, "start_s": NOW_S - 3000}
    return record(job_id, state="RUNNING", comment="explsched:checkpoint=USR1", **where, **since)


Single = Callable[[Callable[[Change], None]], FakeSlurm]


@pytest.fixture
def single(config: Path, monkeypatch: pytest.MonkeyPatch) -> Single:
    """Passes every 15 s, and a training that has 20 s to save; the argument says what happens at each change."""
    text = config.read_text().replace("interval_s: 0.001", "interval_s: 15")
    config.write_text(f"{text}preemption: {{grace_s: 20}}\n")
    monkeypatch.setattr(catalog, "build", lambda _name, _options: Leaving())
    clock = Clock()
    monkeypatch.setattr("slurm_plugin.loop.time", clock)
    monkeypatch.setattr(Daemon, "rest", lambda _daemon, _began_s, until_s: clock.rest(until_s))

    def prepared(happens: Callable[[Change], None]) -> FakeSlurm:
        def refuses(change: Change) -> bool:
            happens(change)
            return False

        return FakeSlurm((training(5, "n1"), record(7, reason="Resources")), refuses=refuses)

    return prepared


def interruptions(slurm: FakeSlurm) -> list[Change]:
    return [change for change in slurm.carried_out if isinstance(change, SignalJob | RequeueJob)]


def test_a_single_pass_sees_its_preemptions_through_and_begins_no_more(
    single: Single, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From cron, less often than a grace period lasts, each would find the last one's signals too old to act on."""

    def happens(change: Change) -> None:
        if change == SignalJob(5, "USR1"):
            slurm.known[6] = training(6, "n2")
        elif change == RequeueJob(5):
            slurm.set(5, state="COMPLETED")

    slurm = single(happens)
    lived_once(slurm, config, monkeypatch)
    assert interruptions(slurm) == [SignalJob(5, "USR1"), RequeueJob(5)]


def test_a_single_pass_does_not_wait_for_ever_for_a_job_to_leave(
    single: Single, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = single(lambda _change: None)
    lived_once(slurm, config, monkeypatch)
    assert interruptions(slurm)[:2] == [SignalJob(5, "USR1"), RequeueJob(5)]


@pytest.mark.parametrize(("back_s", "is_requeued"), [(35.0, True), (1000.0, False)])
def test_while_slurm_is_away_a_single_pass_tries_again_for_some_passes(
    single: Single,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    back_s: float,
    *,
    is_requeued: bool,
) -> None:
    """It ended, and the job that it had asked saved for nothing."""

    def happens(change: Change) -> None:
        if change == RequeueJob(5):
            slurm.set(5, state="COMPLETED")

    slurm = single(happens)
    rest = Clock.rest

    def away_at_the_end_of_the_grace_period(clock: Clock, until_s: float) -> None:
        rest(clock, until_s)
        slurm.silent = 20.0 < until_s < back_s

    monkeypatch.setattr(Clock, "rest", away_at_the_end_of_the_grace_period)
    with nullcontext() if is_requeued else pytest.raises(SlurmUnreachableError):
        lived_once(slurm, config, monkeypatch)
    assert (RequeueJob(5) in interruptions(slurm)) == is_requeued
    assert "pass given up, will try again" in caplog.text


def test_a_single_pass_that_another_host_has_taken_over_from_requeues_nothing(
    single: Single, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def happens(_change: Change) -> None:
        (path,) = (tmp_path / HEARTBEATS).iterdir()
        path.write_bytes(msgspec.json.encode(Beat(Holder("another host", 1, 0.0), 60.0)))

    slurm = single(happens)
    with pytest.raises(AnotherDaemonError, match="on host another host"):
        lived_once(slurm, config, monkeypatch)
    assert interruptions(slurm) == [SignalJob(5, "USR1")]
