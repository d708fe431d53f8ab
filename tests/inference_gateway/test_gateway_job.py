"""The gateway's own job: its options, its successor's dependency, and when it hands over."""

import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from explsched.errors import SlurmError
from inference_gateway import services
from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.control.report import Report
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.supervisor import jobs
from inference_gateway.supervisor.child import Child
from tests.inference_gateway.control.doubles import job as record
from tests.slurm_kit import NOW_S, FakeSlurm

TEXT = """
name: t
listen: {host: 127.0.0.1}
job: {partition: cpu, time: "60"}
services: {chat: {replica: {command: "x {port}"}}}
"""
NOW = Accepted(Path("/srv/it's here/services.yaml"), services.parse(TEXT, Path("/srv/services.yaml")), (), TEXT, "")


def test_a_successor_waits_for_the_job_it_succeeds() -> None:
    slurm = FakeSlurm()
    first = jobs.submit(slurm, NOW, ("--time=30",))
    second = jobs.submit(slurm, NOW, ("--time=30",), after=first)
    (_, alone), (script, after) = slurm.submissions
    assert not any(option.startswith("--dependency") for option in alone)
    assert f"--dependency=afterany:{first}" in after
    # The command line comes last and wins; the successor's successor is to have it, too.
    assert after.index("--time=60") < after.index("--time=30")
    assert "--sbatch=--time=30" in script
    assert f"--after {first}" in script
    assert [found.job_id for found in jobs.active_jobs(slurm, "t")] == [first, second]
    slurm.set(first, state="FAILED")
    assert [found.job_id for found in jobs.active_jobs(slurm, "t")] == [second]


class TestAJobThatTriesAgain:
    """The job 1 of the gateway cannot serve on its node n1."""

    @pytest.fixture
    def now(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Accepted:
        monkeypatch.setenv("SLURMD_NODENAME", "n1")
        paths = GatewayPaths(tmp_path)
        paths.make()
        return replace(NOW, section=msgspec.structs.replace(NOW.section, directory=tmp_path))

    @pytest.fixture
    def slurm(self) -> FakeSlurm:
        return FakeSlurm([record(1, "gateway-t", jobs.tag("t"), state="RUNNING")])

    def again(self, slurm: FakeSlurm, now: Accepted, *extra: str) -> tuple[str, ...]:
        jobs.submit_again(slurm, now, extra, 1)
        return slurm.submissions[-1][1]

    def test_it_avoids_the_node_and_keeps_the_options(self, slurm: FakeSlurm, now: Accepted) -> None:
        found = self.again(slurm, now, "--time=30", "--exclude=n7")
        assert {"--exclude=n1", "--begin=now+60", "--partition=cpu"} < set(found)
        assert found[-2:] == ("--time=30", "--exclude=n7"), "the last one counts"
        assert "--sbatch=--time=30" in slurm.submissions[0][0]
        assert "n1" not in slurm.submissions[0][0], "its successors may run there"

    def test_the_node_is_not_avoided_where_no_other_is_free(
        self, slurm: FakeSlurm, now: Accepted, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        starts_s = lambda _script, options: NOW_S + (600 if "--exclude=n1" in options else 60)  # noqa: E731
        monkeypatch.setattr(slurm, "expected_start_s", starts_s)
        assert "--exclude=n1" not in self.again(slurm, now)

    def test_a_named_node_is_not_avoided(self, slurm: FakeSlurm, now: Accepted) -> None:
        assert "--exclude=n1" not in self.again(slurm, now, "--nodelist=n1")

    def test_one_that_waits_already_is_enough(self, slurm: FakeSlurm, now: Accepted) -> None:
        slurm.known[2] = record(2, "gateway-t", jobs.tag("t"))
        jobs.submit_again(slurm, now, (), 1)
        assert slurm.submissions == []

    @pytest.mark.parametrize(("ago_s", "wait_s"), [(-5, 60), (7, 60), (240, 240), (9000, 600)])
    def test_it_waits_the_longer_the_longer_nobody_has_served(
        self, slurm: FakeSlurm, now: Accepted, monkeypatch: pytest.MonkeyPatch, ago_s: float, wait_s: int
    ) -> None:
        monkeypatch.setattr(time, "time", lambda: NOW_S)
        state.save(now.paths.status, Report("t", "/run", NOW_S - ago_s, closing=False, services=()))
        assert f"--begin=now+{wait_s}" in self.again(slurm, now)


def test_jobs_of_a_gateway_whose_name_begins_alike_are_others() -> None:
    slurm = FakeSlurm()
    slurm.known[1] = record(1, "gateway-t2", jobs.tag("t2"))
    slurm.known[2] = record(2, "chat-1", "igw:t:chat:abcd1234")
    assert jobs.active_jobs(slurm, "t") == ()


@pytest.mark.parametrize(
    ("limit_s", "notice_s", "left_s"), [(3600.0, 300.0, 3300.0), (400.0, 300.0, 200.0), (None, 300.0, math.inf)]
)
def test_the_handover_comes_in_time_but_not_at_once(limit_s: float | None, notice_s: float, left_s: float) -> None:
    running = record(7, "gateway-t", jobs.tag("t"), state="RUNNING", start_s=NOW_S, time_limit_s=limit_s)
    assert jobs.handover_in_s([running], 7, notice_s, NOW_S) == left_s
    assert jobs.handover_in_s([running], 8, notice_s, NOW_S) == math.inf


def test_time_for_which_a_job_was_suspended_is_not_of_its_limit() -> None:
    times = {"start_s": NOW_S, "time_limit_s": 3600.0, "suspended_s": 60.0}
    resumed = record(7, "gateway-t", jobs.tag("t"), state="RUNNING", **times)
    assert jobs.handover_in_s([resumed], 7, 300.0, NOW_S) == 3360.0


def test_a_successor_is_set_free_and_a_refusal_is_an_error() -> None:
    slurm = FakeSlurm()
    jobs.release(slurm, 3)
    assert slurm.released == [3]
    slurm.refusal = "Job is no longer pending execution"
    with pytest.raises(SlurmError, match="no longer pending"):
        jobs.release(slurm, 3)


def test_jobs_are_cancelled() -> None:
    slurm = FakeSlurm()
    slurm.known[3] = record(3, "gateway-t", jobs.tag("t"))
    jobs.cancel(slurm, [3])
    assert slurm.cancelled == [3]
    slurm.silent = True
    jobs.cancel(slurm, [])  # nothing to ask Slurm for


@pytest.mark.parametrize(("text", "number"), [("17", 17), ("", None), (None, None), ("17_3", None)])
def test_the_job_this_runs_in(monkeypatch: pytest.MonkeyPatch, text: str | None, number: int | None) -> None:
    if text is None:
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    else:
        monkeypatch.setenv("SLURM_JOB_ID", text)
    assert jobs.own_job_id() == number


def test_the_script_passes_shellcheck() -> None:
    text = jobs.script(NOW, ("--comment=$(id)",))
    done = subprocess.run(["shellcheck", "-"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "'--sbatch=--comment=$(id)'" in text


def test_the_addresses_of_two_gateways_differ() -> None:
    assert GatewayPaths(Path("/a")).address != GatewayPaths(Path("/b")).address


class TestChild:
    def test_it_is_started_again_when_it_ends(self, tmp_path: Path) -> None:
        count = tmp_path / "count"
        child = Child("x", [sys.executable, "-c", f"open({str(count)!r}, 'a').write('.')"])
        deadline = time.monotonic() + 120
        while not (count.exists() and len(count.read_text()) >= 2):
            assert time.monotonic() < deadline
            child.keep_running()
            time.sleep(0.02)
        child.end()
        assert child.pid is None

    def test_it_is_ended_even_if_it_ignores_sigterm(self, tmp_path: Path) -> None:
        ready = tmp_path / "ready"
        stubborn = f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"
        child = Child("x", ["bash", "-c", stubborn])
        child.keep_running()
        pid = child.pid
        deadline = time.monotonic() + 120
        while not ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.end([(signal.SIGTERM, 0.2), (signal.SIGKILL, 60.0)])
        assert not Path(f"/proc/{pid}").exists()

    def test_a_program_that_is_not_there_is_tried_again_later(self) -> None:
        child = Child("x", ["/nowhere/program"])
        child.keep_running()
        child.keep_running()
        assert child.pid is None
        child.end()
