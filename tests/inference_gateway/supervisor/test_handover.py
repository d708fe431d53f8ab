"""The job before and the job after."""

import errno
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from inference_gateway import gateway_paths, services
from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.control.state import GatewayRecord
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.settings import GatewaySettings
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.supervisor import jobs, succession
from inference_gateway.supervisor.succession import Succession, predecessor
from slurm_plugin.client.changes import CancelJob
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.devcluster.machine import reserved
from tests.inference_gateway.control.doubles import job as record
from tests.inference_gateway.rig import ask
from tests.slurm_kit import NOW_S, FakeSlurm

TEXT = """
name: t
listen: {host: 127.0.0.1}
job: {handover_s: 300}
services: {chat: {replica: {command: "x {port}"}}}
"""
SECTION = services.parse(TEXT, Path("/srv/services.yaml"))
NOW = Accepted(Path("/srv/services.yaml"), SECTION, (), TEXT, "")
OWN = 1
FIRST = """
import subprocess, sys
from pathlib import Path
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.settings import GatewaySettings
directory, port = Path(sys.argv[1]), int(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "none", str(directory)], check=True)
plane = HaproxyDataPlane(GatewaySettings(directory / "first", port, services=()))
plane.start()
print("serves", flush=True)
sys.stdin.readline()
plane.stop(grace_s=5.0)
"""


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayPaths:
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    found = GatewayPaths(tmp_path / "state")
    found.make()
    return found


@dataclass
class Clock:
    """Both clocks at once; the tests turn them."""

    now_s: float = NOW_S

    def time(self) -> float:
        return self.now_s

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(succession, "time", made)
    return made


class Gateway:
    """The job 1 with an hour to run, and its succession."""

    def __init__(self, paths: GatewayPaths, clock: Clock) -> None:
        self.clock = clock
        self.slurm = FakeSlurm()
        self.slurm.known[OWN] = record(OWN, "gateway-t", jobs.tag("t"), state="RUNNING", start_s=NOW_S)
        self.succession = Succession(self.slurm, paths, (), own=OWN)

    def at(self, second: float, now: Accepted = NOW) -> None:
        self.clock.now_s = NOW_S + second
        self.succession.check(now)


@pytest.fixture
def gateway(paths: GatewayPaths, clock: Clock) -> Gateway:
    return Gateway(paths, clock)


def test_one_successor_is_queued_and_a_lost_one_is_replaced(gateway: Gateway, paths: GatewayPaths) -> None:
    slurm = gateway.slurm
    for second in (0, 60, 120):
        gateway.at(second)
    assert len(slurm.submissions) == 1
    assert "--dependency=afterany:1" in slurm.submissions[0][1]
    # Slurm may signal a job before its script has run a line: it would die of that.
    assert not [option for option in slurm.submissions[0][1] if option.startswith("--signal")]
    waiting = max(slurm.known)
    slurm.set(waiting, state="CANCELLED")
    gateway.at(179)
    assert len(slurm.submissions) == 1, "not before it is time to look again"
    gateway.at(180)
    assert len(slurm.submissions) == 2
    slurm.set(max(slurm.known), state="CANCELLED")
    gateway.at(240)
    assert len(slurm.submissions) == 3
    paths.closing.touch()
    slurm.set(max(slurm.known), state="CANCELLED")
    gateway.at(900)
    assert len(slurm.submissions) == 3, "a gateway that closes has none"


def test_a_successor_that_is_queued_already_is_used(gateway: Gateway) -> None:
    gateway.slurm.known[7] = record(7, "gateway-t", jobs.tag("t"))
    gateway.at(0)
    gateway.at(3301)
    assert gateway.slurm.submissions == []
    assert gateway.slurm.released == [7]


class TestAReload:
    """A services file whose `job` has been changed, as before a node is taken out of service."""

    MOVED = replace(
        NOW, section=services.parse(TEXT.replace("{handover_s", "{node: gw2, handover_s"), NOW.services_path)
    )

    def test_the_successor_waits_with_the_options_of_a_reload(self, gateway: Gateway) -> None:
        gateway.at(0)
        first = max(gateway.slurm.known)
        gateway.slurm.loses = lambda change: isinstance(change, CancelJob)
        gateway.at(60, self.MOVED)
        second = max(gateway.slurm.known)
        gateway.slurm.loses = lambda _change: False
        for at_s in (120, 180):
            gateway.at(at_s, self.MOVED)
        assert ["--nodelist=gw2" in options for _, options in gateway.slurm.submissions] == [False, True]
        assert (gateway.slurm.cancelled, gateway.slurm.known[second].state) == ([first], "PENDING")
        gateway.succession.hand_over_now()
        gateway.at(181, self.MOVED)
        assert gateway.slurm.released == [second]

    def test_a_reload_just_before_the_handover_counts(self, gateway: Gateway) -> None:
        gateway.at(0)
        gateway.succession.hand_over_now()
        gateway.at(1, self.MOVED)
        assert gateway.slurm.released == [max(gateway.slurm.known)]
        assert "--nodelist=gw2" in gateway.slurm.submissions[-1][1]
        gateway.at(61)
        assert len(gateway.slurm.submissions) == 2, "what takes over already is left alone"

    def test_a_new_successor_of_which_sbatch_did_not_tell_is_found(self, gateway: Gateway) -> None:
        gateway.at(0)
        first = max(gateway.slurm.known)
        gateway.slurm.forgets = True
        gateway.at(60, self.MOVED)
        gateway.slurm.forgets = False
        gateway.at(120, self.MOVED)
        assert (len(gateway.slurm.submissions), gateway.slurm.cancelled) == (2, [first])

    def test_a_successor_stays_where_slurm_refuses_the_new_options(self, gateway: Gateway) -> None:
        gateway.at(0)
        first = max(gateway.slurm.known)
        gateway.slurm.refusal = "invalid partition specified"
        gateway.at(60, self.MOVED)
        gateway.slurm.refusal = ""
        gateway.slurm.mute = frozenset({"submit"})
        gateway.at(3300, self.MOVED)
        assert (gateway.slurm.cancelled, gateway.slurm.released) == ([], [first])


def test_a_running_job_is_no_successor(gateway: Gateway) -> None:
    """The job before this one, which is about to end."""
    gateway.slurm.known[7] = record(7, "gateway-t", jobs.tag("t"), state="RUNNING")
    gateway.at(0)
    assert len(gateway.slurm.submissions) == 1


def test_one_successor_is_submitted_where_slurm_does_not_keep_comments(gateway: Gateway) -> None:
    """As where a site's job_submit plugin writes its own: it is not found, and one more would follow every minute."""
    gateway.slurm.set(OWN, comment="project x")
    gateway.at(0)
    gateway.slurm.set(max(gateway.slurm.known), comment="project x")
    for second in (60, 120, 180):
        gateway.at(second)
    assert len(gateway.slurm.submissions) == 1


def test_a_gateway_in_the_foreground_of_a_job_has_a_successor(gateway: Gateway) -> None:
    """Of an allocation for a terminal, which has no comment of ours."""
    gateway.slurm.set(OWN, comment="")
    for second in (0, 60, 120):
        gateway.at(second)
    assert len(gateway.slurm.submissions) == 1


def test_a_gateway_outside_of_a_job_has_no_successor(paths: GatewayPaths, clock: Clock) -> None:
    slurm = FakeSlurm()
    alone = Succession(slurm, paths, (), own=None)
    alone.check(NOW)
    assert slurm.submissions == []
    assert not alone.coming()


class TestHandover:
    def test_the_successor_is_released_once(self, gateway: Gateway) -> None:
        for second in (0, 3240, 3299):
            gateway.at(second)
        assert (gateway.slurm.released, gateway.succession.coming()) == ([], False)
        for second in (3300, 3305, 3400):
            gateway.at(second)
        assert gateway.slurm.released == [max(gateway.slurm.known)]
        assert gateway.succession.coming()

    def test_the_successor_is_released_at_the_handover_time_and_not_before(self, gateway: Gateway) -> None:
        gateway.at(3280)
        gateway.at(3299)
        assert gateway.slurm.released == []
        gateway.at(3300)
        assert len(gateway.slurm.released) == 1

    def test_a_signal_is_taken_for_the_handover_time(self, gateway: Gateway) -> None:
        gateway.at(0)
        gateway.succession.hand_over_now()
        gateway.at(1)
        gateway.at(6)
        assert gateway.slurm.released == [max(gateway.slurm.known)]
        assert gateway.succession.coming()

    def test_a_refused_release_is_repeated(self, gateway: Gateway) -> None:
        gateway.at(0)
        gateway.slurm.refusal = "Slurm temporarily unable to accept job, sleeping and retrying"
        gateway.at(3300)
        assert not gateway.succession.coming(), "nobody comes: an end is not to be waited with"
        gateway.slurm.refusal = ""
        gateway.at(3304)
        assert gateway.slurm.released == []
        gateway.at(3305)
        assert len(gateway.slurm.released) == 1
        assert gateway.succession.coming()

    def test_a_slurm_that_does_not_answer_is_asked_every_five_seconds(self, gateway: Gateway) -> None:
        gateway.slurm.silent = True
        gateway.at(0)
        gateway.slurm.silent = False
        gateway.at(4)
        assert gateway.slurm.submissions == []
        gateway.at(5)
        assert len(gateway.slurm.submissions) == 1

    def test_a_successor_that_runs_already_is_not_released(self, gateway: Gateway) -> None:
        gateway.at(0)
        gateway.slurm.set(max(gateway.slurm.known), state="RUNNING")
        gateway.at(3300)
        assert gateway.slurm.released == []
        assert gateway.succession.coming()

    def test_a_released_successor_is_looked_for_every_five_seconds(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks: list[float] = []
        listed = gateway.slurm.tagged_jobs

        def look(prefix: str) -> tuple[SlurmJob, ...]:
            looks.append(gateway.clock.now_s - NOW_S)
            return listed(prefix)

        monkeypatch.setattr(gateway.slurm, "tagged_jobs", look)
        for second in (0, *range(3290, 3321)):
            gateway.at(second)
        assert looks == [0, 3290, 3300, 3305, 3310, 3315, 3320]

    def test_a_released_successor_that_dies_is_replaced(self, gateway: Gateway) -> None:
        gateway.at(3300)
        first = max(gateway.slurm.known)
        gateway.slurm.set(first, state="FAILED")
        gateway.at(3360)
        assert gateway.slurm.released == [first, max(gateway.slurm.known)]
        assert first != max(gateway.slurm.known)

    def test_a_successor_is_coming_until_it_takes_requests(self, gateway: Gateway, paths: GatewayPaths) -> None:
        gateway.at(3300)
        assert (gateway.succession.coming(), gateway.succession.taken_over()) == (True, False)
        paths.handover(OWN).touch()
        assert gateway.succession.coming(), "our own word from our start"
        paths.handover(8).touch()
        assert gateway.succession.coming(), "left by a job that has died"
        paths.handover(max(gateway.slurm.known)).touch()
        assert (gateway.succession.coming(), gateway.succession.taken_over()) == (False, True)
        gateway.succession.handing_over = False
        assert not gateway.succession.taken_over(), "it was not set free by this one"

    def test_the_word_of_a_job_that_died_is_not_its_successors(self, gateway: Gateway, paths: GatewayPaths) -> None:
        """Job ids begin anew where Slurm has lost its state."""
        paths.handover(max(gateway.slurm.known) + 1).touch()
        gateway.at(3300)
        assert gateway.succession.coming()

    def test_a_successor_that_has_the_address_already_has_taken_over(
        self, gateway: Gateway, paths: GatewayPaths
    ) -> None:
        """It waits for us for half a minute; the answer of Slurm, for which we wait, may take longer."""
        ours = GatewayRecord("http://a", "a", 1, 1, OWN, "/run/1", NOW_S, "a")
        gateway.at(3300)
        for job_id, why in ((8, "of a job that was killed: a full disk has kept our own from it"), (OWN, "our own")):
            state.announce(paths, replace(ours, job_id=job_id))
            assert not gateway.succession.taken_over(), why
        state.announce(paths, replace(ours, job_id=max(gateway.slurm.known)))
        assert gateway.succession.taken_over()


class TestAJobThatSlurmTakesForEnded:
    """As where the node's slurmd is dead: Slurm starts the successor, and nobody ends this one."""

    def test_it_hands_over(self, gateway: Gateway, paths: GatewayPaths) -> None:
        gateway.at(0)
        successor = max(gateway.slurm.known)
        gateway.slurm.set(OWN, state="NODE_FAIL")
        gateway.at(60)
        assert not gateway.succession.coming(), "it serves until somebody else does"
        gateway.slurm.set(successor, state="RUNNING")
        gateway.at(120)
        assert gateway.succession.coming()
        paths.handover(successor).touch()
        assert gateway.succession.taken_over()
        gateway.at(125)
        assert (gateway.slurm.released, len(gateway.slurm.submissions)) == ([], 1)

    def test_it_goes_on_where_the_successor_cannot_serve(self, gateway: Gateway) -> None:
        gateway.at(0)
        successor = max(gateway.slurm.known)
        gateway.slurm.set(OWN, state="NODE_FAIL")
        gateway.slurm.set(successor, state="FAILED")
        for second in (60, 120, 180):
            gateway.at(second)
        assert not gateway.succession.handing_over


class TestWhatKilledJobsHaveLeft:
    """The private directory of the job 5 on this node."""

    @pytest.fixture
    def left(self, gateway: Gateway) -> Path:
        made = gateway_paths.private("t", 5)
        (made / "access.log").write_text("a request\n")
        return made

    def now(self, paths: GatewayPaths) -> Accepted:
        return replace(NOW, section=msgspec.structs.replace(NOW.section, directory=paths.root))

    def test_it_is_removed_but_its_log_is_kept(self, gateway: Gateway, paths: GatewayPaths, left: Path) -> None:
        others = [gateway_paths.private(*which) for which in (("t-2", 5), ("u", 5), ("t", OWN), ("t", None))]
        gateway.at(0, self.now(paths))
        assert (left.exists(), [other.exists() for other in others]) == (False, [True] * 4)
        assert paths.access_log.read_text() == "a request\n"

    def test_one_that_cannot_be_looked_at_does_not_stop_the_succession(
        self, gateway: Gateway, paths: GatewayPaths, left: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(at: Path) -> AbstractContextManager[bool]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(at))

        monkeypatch.setattr(gateway_paths, "supervised", fails)
        gateway.at(3300, self.now(paths))
        assert (len(gateway.slurm.released), left.exists()) == (1, True)

    def test_it_stays_while_its_job_or_its_supervisor_lives(
        self, gateway: Gateway, paths: GatewayPaths, left: Path
    ) -> None:
        """The last one is that of a job that Slurm takes for ended, or that ends right now."""
        gateway.slurm.known[5] = record(5, "gateway-t", jobs.tag("t"), state="RUNNING")
        gateway.at(0, self.now(paths))
        assert left.exists()
        gateway.slurm.set(5, state="NODE_FAIL")
        with gateway_paths.supervised(left) as ours:
            assert ours
            gateway.at(60, self.now(paths))
            assert left.exists()
        gateway.at(120, self.now(paths))
        assert not left.exists()


class TestPredecessor:
    """The data plane of the job 5 on this node."""

    def announced(self, paths: GatewayPaths, directory: Path, **fields: object) -> None:
        known = GatewayRecord("http://h:1", "h", 1, os.getpid(), 5, str(directory), 1.0, socket.gethostname())
        state.announce(paths, replace(known, **fields))

    def found(self, paths: GatewayPaths, slurm: FakeSlurm) -> Files | None:
        announced = state.holder(paths)
        assert announced is not None
        return predecessor(announced, NOW, slurm, OWN)

    @pytest.fixture
    def stopped(self, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
        """Every data plane is alive; those that were ended."""
        ended: list[Path] = []

        class Plane:
            def __init__(self, files: Files) -> None:
                self.files = files

            def alive(self) -> bool:
                return not (self.files.directory / "dead").exists()

            def stop(self, grace_s: float) -> None:
                assert grace_s == 0.0, "its replicas are gone: nothing is worth waiting for"
                ended.append(self.files.directory)

        monkeypatch.setattr(succession, "Processes", Plane)
        return ended

    def running(self) -> FakeSlurm:
        slurm = FakeSlurm()
        slurm.known[5] = record(5, "gateway-t", jobs.tag("t"), state="RUNNING")
        return slurm

    def test_a_data_plane_whose_job_runs_is_taken_over(
        self, paths: GatewayPaths, tmp_path: Path, stopped: list[Path]
    ) -> None:
        self.announced(paths, tmp_path)
        assert self.found(paths, self.running()) == Files(tmp_path, tmp_path)
        assert stopped == []

    def test_a_data_plane_whose_job_was_killed_is_ended(
        self, paths: GatewayPaths, tmp_path: Path, stopped: list[Path]
    ) -> None:
        run_directory = gateway_paths.private("t", 5)
        self.announced(paths, run_directory)
        assert self.found(paths, FakeSlurm()) is None
        assert stopped == [run_directory]

    def test_a_data_plane_whose_supervisor_lives_is_taken_over(
        self, paths: GatewayPaths, tmp_path: Path, stopped: list[Path]
    ) -> None:
        """It would start it again, and each end the other's. As where Slurm has lost the node, and found it again."""
        run_directory = gateway_paths.private("t", 5)
        self.announced(paths, run_directory)
        with gateway_paths.supervised(run_directory):
            assert self.found(paths, FakeSlurm()) == Files(run_directory, run_directory)
        assert (stopped, run_directory.exists()) == ([], True)

    def test_one_that_ends_just_now_is_no_predecessor(
        self, paths: GatewayPaths, tmp_path: Path, stopped: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where Slurm has taken its job for ended before it did: it removes its directory while Slurm answers."""
        self.announced(paths, run_directory := gateway_paths.private("t", 5))
        slurm = FakeSlurm()

        def listed(_prefix: str) -> tuple[SlurmJob, ...]:
            run_directory.rmdir()
            return ()

        monkeypatch.setattr(slurm, "tagged_jobs", listed)
        assert self.found(paths, slurm) is None
        assert stopped == []

    @pytest.mark.parametrize("left", ["alive", "dead"])
    def test_what_a_killed_job_has_left_is_removed_but_its_log_is_kept(
        self, paths: GatewayPaths, tmp_path: Path, stopped: list[Path], left: str
    ) -> None:
        run_directory = tmp_path / "run"
        run_directory.mkdir()
        for name in ("access.log", left):
            (run_directory / name).write_text("a request\n")
        self.announced(paths, run_directory)
        now = replace(NOW, section=msgspec.structs.replace(NOW.section, directory=paths.root))
        announced = state.holder(paths)
        assert announced is not None
        assert predecessor(announced, now, FakeSlurm(), OWN) is None
        assert not run_directory.exists()
        assert paths.access_log.read_text() == "a request\n"

    def test_a_data_plane_is_left_alone_while_slurm_does_not_answer(
        self, paths: GatewayPaths, tmp_path: Path, stopped: list[Path]
    ) -> None:
        self.announced(paths, tmp_path)
        slurm = self.running()
        slurm.silent = True
        assert self.found(paths, slurm) == Files(tmp_path, tmp_path)
        assert stopped == []

    @pytest.mark.parametrize("other", [{"job_id": None}, {"job_id": OWN}, {"node": "elsewhere"}])
    def test_only_another_job_on_this_node_is_a_predecessor(
        self, paths: GatewayPaths, tmp_path: Path, stopped: list[Path], other: dict[str, object]
    ) -> None:
        self.announced(paths, tmp_path, **other)
        assert self.found(paths, FakeSlurm()) is None
        assert stopped == []

    def test_a_data_plane_that_has_ended_is_no_predecessor(
        self, paths: GatewayPaths, tmp_path: Path, stopped: list[Path]
    ) -> None:
        self.announced(paths, tmp_path / "gone")
        assert self.found(paths, FakeSlurm()) is None
        self.announced(paths, tmp_path)
        (tmp_path / "dead").touch()
        assert self.found(paths, self.running()) is None
        assert stopped == []

    def test_a_predecessor_whose_tmp_is_private_is_found_through_its_process(
        self, paths: GatewayPaths, directory: Path, tmp_path: Path
    ) -> None:
        """As by Slurm's `job_container/tmpfs`. Both listen until the first is stopped, so no connection is refused."""
        script = tmp_path / "first.py"
        script.write_text(FIRST)
        with reserved(1) as (port,):
            argv = ["unshare", "--mount", sys.executable, str(script), str(directory), str(port)]
            with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
                assert first.stdout is not None
                if first.stdout.readline() != "serves\n":
                    pytest.skip("needs root, for a mount of its own")
                second = HaproxyDataPlane(GatewaySettings(directory / "second", port, services=()))
                try:
                    self.announced(paths, directory / "first", pid=first.pid)
                    found = self.found(paths, self.running())
                    assert found is not None
                    second.start(found)
                    assert ask(port, "GET", "/healthz").status == 200
                    first.communicate("\n")
                    assert ask(port, "GET", "/healthz").status == 200
                finally:
                    first.kill()
                    second.stop(grace_s=0.0)

    def test_a_predecessor_out_of_sight_is_told_of(
        self, paths: GatewayPaths, tmp_path: Path, stopped: list[Path], caplog: pytest.LogCaptureFixture
    ) -> None:
        self.announced(paths, tmp_path / "gone", pid=os.getpid())
        assert self.found(paths, self.running()) is None
        assert f"{tmp_path}/gone cannot be seen from this job" in caplog.text

    def test_another_users_directory_is_no_predecessor(
        self, paths: GatewayPaths, tmp_path: Path, stopped: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.announced(paths, tmp_path)
        monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
        assert self.found(paths, self.running()) is None
        assert stopped == []
