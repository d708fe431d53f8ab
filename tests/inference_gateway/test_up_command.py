"""`sexplsched gateway up`: one gateway of a name, and what an earlier one has left."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from explsched import log
from explsched.errors import SlurmError
from inference_gateway.accepted import Accepted
from inference_gateway.cli import commands
from inference_gateway.control import state
from inference_gateway.control.report import Report
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.supervisor import jobs
from tests.inference_gateway.control.doubles import job as record
from tests.slurm_kit import NOW_S, FakeSlurm

SERVICES = """
name: t
directory: state
listen: {host: 127.0.0.1}
services: {chat: {replica: {command: "x {port}"}}}
"""


@dataclass
class Site:
    """A Slurm, and a clock that sleeping turns."""

    directory: Path
    slurm: FakeSlurm = field(default_factory=FakeSlurm)
    now_s: float = NOW_S
    slept: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        (self.directory / "services.yaml").write_text(SERVICES)
        self.paths = GatewayPaths(self.directory / "state")
        self.paths.make()

    def time(self) -> float:
        return self.now_s

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept()

    def up(self, *argv: str) -> str:
        done = CliRunner().invoke(commands.up, ["-s", str(self.directory / "services.yaml"), *argv])
        if isinstance(done.exception, GatewayError):
            return str(done.exception)
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setattr(commands, "time", made)
    monkeypatch.setattr(commands, "CliClient", lambda _timeout_s: made.slurm)
    return made


def test_it_submits_one_job(site: Site) -> None:
    site.slurm.known[1] = record(1, "gateway-t2", jobs.tag("t2"), state="RUNNING")
    site.slurm.known[2] = record(2, "gateway-t", jobs.tag("t"), state="COMPLETED")
    site.paths.closing.touch()
    assert site.up("--partition", "cpu") == "Submitted batch job 3\n"
    assert not site.paths.closing.exists(), "the `down` was for the one before"
    ((script, options),) = site.slurm.submissions
    assert "--partition=cpu" in options
    assert "--sbatch=--partition=cpu" in script


@pytest.mark.parametrize("option", ["--comment=mine", "--comm mine", "-Jmine", "--dependency=singleton"])
def test_options_by_which_its_jobs_are_known_are_refused(site: Site, option: str) -> None:
    assert site.up("--sbatch", "--exclusive", "--sbatch", option).startswith(f"--sbatch: found {option!r}, accepted: ")
    assert site.slurm.submissions == []


@pytest.mark.parametrize("job_state", ["PENDING", "RUNNING", "REQUEUED"])
def test_a_second_one_of_the_name_is_refused(site: Site, job_state: str) -> None:
    site.slurm.known[9] = record(9, "gateway-t", jobs.tag("t"), state=job_state)
    site.paths.closing.touch()
    assert site.up() == "gateway t is up or starting already: job 9"
    assert site.slurm.submissions == []
    assert site.paths.closing.exists(), "its `down` holds"


@pytest.mark.parametrize(("fields", "runs"), [({}, False), ({"state": "RUNNING"}, False), ({"eligible_s": None}, True)])
def test_none_is_run_beside_a_job_that_has_not_started_yet(
    site: Site, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], *, runs: bool
) -> None:
    """One that waits for another job, which is gone, is the successor of a gateway that was ended by Ctrl-C."""
    ran: list[Accepted] = []
    monkeypatch.setattr(commands, "run", lambda now, _sbatch: ran.append(now))
    monkeypatch.setattr(log, "set_up", lambda *_: None)
    site.slurm.known[9] = record(9, "gateway-t", jobs.tag("t"), **fields)
    assert ("starting already: job 9" in site.up("--foreground")) == (not runs)
    assert len(ran) == runs


def test_of_two_at_the_same_time_one_submits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until sbatch has answered, Slurm shows the second one no job of the first."""
    told: list[str] = []
    submit = site.slurm.submit

    def meanwhile(script: str, options: Sequence[str]) -> int:
        monkeypatch.setattr(site.slurm, "submit", submit)
        told.append(site.up())
        return submit(script, options)

    monkeypatch.setattr(site.slurm, "submit", meanwhile)
    assert site.up() == "Submitted batch job 1\n"
    assert told == ["gateway t is being started or ended by another command"]
    assert len(site.slurm.submissions) == 1


def test_of_two_gateways_none_is_left_where_slurm_refuses_the_second(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = site.directory / "services.yaml"
    services.write_text(SERVICES + "job: {node: gw1, second: {node: gone}}\n")
    submit = site.slurm.submit

    def refuse(script: str, options: Sequence[str]) -> int:
        if "--nodelist=gone" in options:
            raise SlurmError("sbatch: error: Batch job submission failed: Invalid node name specified")
        return submit(script, options)

    monkeypatch.setattr(site.slurm, "submit", refuse)
    done = CliRunner().invoke(commands.up, ["-s", str(services)])
    assert "Invalid node name" in str(done.exception)
    assert site.slurm.cancelled == [1], "once the file is mended `up` is not refused"


@pytest.mark.parametrize(("seconds_ago", "is_up"), [(4.0, True), (5.0, False)])
def test_one_that_runs_without_a_job_is_seen_by_its_reports(site: Site, seconds_ago: float, *, is_up: bool) -> None:
    site.paths.gateway.write_text("{}")
    state.save(site.paths.status, Report("t", "/run", NOW_S - seconds_ago, closing=False, services=()))
    assert (site.up() == "gateway t is up (`gateway down` ends it), or has just ended: try again") == is_up
    assert len(site.slurm.submissions) == (0 if is_up else 1)


def test_what_an_earlier_one_was_told_does_not_hold_for_this_one(site: Site) -> None:
    former = site.paths.root / "handover"  # of the version before
    words = (former, *(own.handover(7) for own in site.paths.slots))
    told = (site.paths.closing, site.paths.reload, site.paths.overrides, *words)
    for left in told:
        left.touch()
    site.up()
    assert not any(left.exists() for left in told)


def test_it_waits_until_the_new_one_serves(site: Site) -> None:
    """The address of an earlier one may still be there."""
    site.paths.address.write_text("http://old:1\n")

    def slept() -> None:
        if site.now_s >= NOW_S + 3:
            site.paths.address.write_text("http://new:1\n")
            os.utime(site.paths.address, (NOW_S + 1e8, NOW_S + 1e8))

    site.slept = slept
    assert site.up("--wait", "20") == "Submitted batch job 1\nhttp://new:1\n"
    assert site.now_s == NOW_S + 3


def test_one_that_does_not_come_is_an_error_that_names_its_log(site: Site) -> None:
    told = site.up("--wait", "20")
    assert told == f"gateway t does not serve after 20 s; see {site.paths.root}/gateway.log"
