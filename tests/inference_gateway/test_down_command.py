"""`sexplsched gateway down`: what is waited for, what is cancelled, and what is not ours."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from explsched.strict_yaml import ConfigError
from inference_gateway import accepted
from inference_gateway.cli import commands as down
from inference_gateway.control import state
from inference_gateway.control.report import ReplicaReport, Report
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.supervisor import jobs
from tests.inference_gateway.control.doubles import job as record
from tests.slurm_kit import NOW_S, FakeSlurm

SERVICES = """
name: t
directory: state
listen: {host: 127.0.0.1}
services:
  slow: {drain_deadline_s: 100, replica: {command: "x {port}"}}
  chat: {drain_deadline_s: 40, replica: {command: "x {port}"}}
"""

OLD = ReplicaReport("old-1", "draining", 7, "n1", 1, False, 1, "draining", NOW_S, None, "")  # noqa: FBT003


@dataclass
class Site:
    """A gateway job 1 with its successor 2 and the replicas 3 and 4; 5 to 8 are others'. Sleeping is its clock."""

    directory: Path
    slurm: FakeSlurm = field(default_factory=FakeSlurm)
    now_s: float = NOW_S
    slept: Callable[[float], None] = lambda _now_s: None

    def __post_init__(self) -> None:
        (self.directory / "services.yaml").write_text(SERVICES)
        self.paths = GatewayPaths(self.directory / "state")
        self.paths.make()
        self.paths.gateway.write_text("{}")
        mine, theirs = "igw:t:chat:g1", "igw:t2:chat:g1"
        comments = (jobs.tag("t"), jobs.tag("t"), mine, mine, theirs, jobs.tag("t2"), "somebody's", mine)
        for number, comment in enumerate(comments, start=1):
            self.slurm.known[number] = record(number, f"j{number}", comment, state="RUNNING")
        self.slurm.set(2, state="PENDING")
        self.slurm.set(8, state="COMPLETED")

    def time(self) -> float:
        return self.now_s

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept(self.now_s - NOW_S)

    def reported(self, seconds_ago: float, *removed: ReplicaReport) -> None:
        told = Report("t", "/run", NOW_S - seconds_ago, closing=False, services=(), removed=removed)
        state.save(self.paths.status, told)

    def down(self, *argv: str) -> str:
        done = CliRunner().invoke(down.down, ["-s", str(self.directory / "services.yaml"), *argv])
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setattr(down, "time", made)
    monkeypatch.setattr(down, "CliClient", lambda _timeout_s: made.slurm)
    return made


@pytest.mark.parametrize("seconds_ago", [None, 30.0])
def test_without_a_control_plane_all_that_is_ours_is_cancelled(site: Site, seconds_ago: float | None) -> None:
    if seconds_ago is not None:
        site.reported(seconds_ago)
    assert site.down() == "gateway t: down, 2 replicas cancelled undrained\n"
    assert site.slurm.cancelled == [2, 3, 4, 1]
    assert site.now_s == NOW_S


@pytest.mark.parametrize(("removed", "longest_s"), [((), 130), ((OLD,), 330)])
def test_replicas_of_a_service_that_was_removed_are_waited_for_longer(
    site: Site, removed: tuple[ReplicaReport, ...], longest_s: float
) -> None:
    site.reported(0, *removed)
    assert "2 replicas cancelled undrained" in site.down()
    assert site.now_s - NOW_S == longest_s


@pytest.mark.parametrize("state_of_4", ["STOPPED", "COMPLETING"])
def test_what_may_run_again_is_cancelled(site: Site, state_of_4: str) -> None:
    """A job that is requeued is COMPLETING at first."""
    site.slurm.set(4, state=state_of_4)
    told = site.down("--now")
    assert site.slurm.cancelled == [2, 3, 4, 1]
    assert f"{1 if state_of_4 == 'COMPLETING' else 2} replicas cancelled undrained" in told


def test_now_does_not_wait(site: Site) -> None:
    site.reported(0)
    assert "2 replicas cancelled undrained" in site.down("--now")
    assert site.slurm.cancelled == [2, 3, 4, 1]
    assert site.now_s == NOW_S


def test_replicas_and_then_the_gateway_end_by_themselves(site: Site) -> None:
    site.reported(29.0)

    def slept(after_s: float) -> None:
        assert site.slurm.cancelled == [2], "the successor first: it would start when the gateway ends"
        assert site.paths.closing.exists()
        if after_s == 30:
            site.slurm.set(3, state="COMPLETED")
        if after_s == 60:
            site.slurm.set(4, state="CANCELLED")
        if after_s == 62:
            site.paths.gateway.unlink()
            site.slurm.set(1, state="COMPLETED")

    site.slept = slept
    assert site.down() == "gateway t: down\n"
    assert (site.slurm.cancelled, site.now_s - NOW_S) == ([2], 62)


def test_nobody_is_waited_for_where_the_gateway_has_just_ended_and_its_replicas_went_on(site: Site) -> None:
    site.reported(1)
    site.paths.gateway.unlink()
    assert site.down() == "gateway t: down, 2 replicas cancelled undrained\n"
    assert site.now_s == NOW_S


def test_what_does_not_end_is_cancelled_after_the_longest_drain(site: Site) -> None:
    site.reported(0)
    assert "2 replicas cancelled undrained" in site.down()
    assert site.now_s - NOW_S == 130
    assert site.slurm.cancelled == [2, 3, 4, 1]


def test_a_supervisor_that_hangs_is_cancelled(site: Site) -> None:
    site.reported(0)
    for number in (3, 4):
        site.slurm.set(number, state="COMPLETED")
    assert site.down() == "gateway t: down\n"
    assert site.slurm.cancelled == [2, 1]


@pytest.mark.parametrize("after_s", [5, 61])
def test_a_gateway_that_is_started_meanwhile_is_left_alone(site: Site, after_s: int) -> None:
    """The one before has ended, by itself or otherwise, between two looks of `down`."""
    site.reported(0)

    def slept(now_s: float) -> None:
        if now_s == 60:
            site.slurm.set(3, state="COMPLETED")
            site.slurm.set(4, state="COMPLETED")
        if now_s == after_s:
            site.slurm.set(1, state="COMPLETED")
            (new,) = jobs.start(site.slurm, accepted.read(site.directory / "services.yaml"), ())
            site.slurm.set(new, state="RUNNING")

    site.slept = slept
    assert site.down() == "gateway t: down, and up again by another command\n"
    assert (site.slurm.cancelled, site.now_s - NOW_S) == ([2], after_s)


def test_a_successor_that_was_submitted_meanwhile_is_cancelled(site: Site) -> None:
    """The supervisor had found no successor just before it learned that the gateway is to close."""
    site.reported(0)

    def slept(now_s: float) -> None:
        if now_s == 1:
            site.slurm.known[9] = record(9, "gateway-t", jobs.tag("t"))
            site.paths.gateway.unlink()

    site.slept = slept
    assert "2 replicas cancelled undrained" in site.down()
    assert site.slurm.cancelled == [2, 3, 4, 1, 9]


def test_a_start_that_is_under_way_decides(site: Site) -> None:
    """It has not yet asked Slurm whether there is one, or is about to submit a new one."""
    with state.locked(site.paths.start_lock) as ours:
        assert ours
        site.slept = lambda after_s: site.paths.closing.unlink() if after_s == 3 else None
        assert site.down() == "gateway t: down, and up again by another command\n"
    assert (site.slurm.cancelled, site.now_s - NOW_S) == ([2], 3)


@pytest.mark.parametrize("directory", ["state", "other"])
def test_one_that_is_not_up_is_no_success(site: Site, tmp_path: Path, directory: str) -> None:
    """The name, or name and directory, were edited before `down`: the gateway goes on under the former ones."""
    site.reported(0)
    text = SERVICES.replace("name: t", "name: u").replace("directory: state", f"directory: {directory}")
    (tmp_path / "services.yaml").write_text(text)
    done = CliRunner().invoke(down.down, ["-s", str(tmp_path / "services.yaml")])
    assert isinstance(done.exception, GatewayError)
    of_t = ", which is of gateway t" if directory == "state" else ""
    assert str(done.exception) == f"gateway u is not up: it has no job, and nothing in {tmp_path / directory}{of_t}"
    assert (site.slurm.cancelled, site.paths.closing.exists(), (tmp_path / "other").exists()) == ([], False, False)


def test_it_ends_the_gateway_in_force_where_the_edited_file_has_a_fault(site: Site, tmp_path: Path) -> None:
    accepted.read(tmp_path / "services.yaml").keep()
    (tmp_path / "services.yaml").write_text(SERVICES.replace("drain_deadline_s: 100", "drain: 100"))
    assert "gateway t: down, 2 replicas cancelled undrained\n" in site.down()
    assert site.slurm.cancelled == [2, 3, 4, 1]


@pytest.mark.parametrize(
    "head", ["nmae: test", "name: [test", "name: test\ndirectory: ~/.explsched/gateway/gateway\nunknown: 1"]
)
def test_a_fault_in_one_file_does_not_end_the_gateway_of_another(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    """Which runs under the default name: that is taken for a name which cannot be read."""
    monkeypatch.setenv("HOME", str(tmp_path))
    text = SERVICES.replace("name: t\ndirectory: state\n", "")
    (tmp_path / "services.yaml").write_text(text)
    running = accepted.read(tmp_path / "services.yaml")
    running.paths.make()
    running.keep()
    site.slurm.set(1, comment=jobs.tag(running.section.name))
    (tmp_path / "test.yaml").write_text(head + text)
    done = CliRunner().invoke(down.down, ["-s", str(tmp_path / "test.yaml"), "--now"])
    assert isinstance(done.exception, ConfigError)
    assert f"has no file that was accepted from {tmp_path / 'test.yaml'}" in str(done.exception)
    assert site.slurm.cancelled == []
