"""The life of a gateway on one node, second by second: its data plane, its control plane and the clock are doubles."""

import errno
import resource
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import pytest

from explsched.errors import SlurmUnreachableError
from inference_gateway import accepted, gateway_paths
from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.control.planes import NO_MORE_S, PlaneReport
from inference_gateway.control.report import ReplicaReport, Report, ServiceReport
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.settings import GatewaySettings
from inference_gateway.errors import ActivatorError, GatewayError, StartError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import Endpoint, ServerState, Traffic
from inference_gateway.supervisor import jobs, loop, succession
from inference_gateway.supervisor.loop import Supervisor
from inference_gateway.supervisor.succession import Succession
from slurm_plugin.client.records import SlurmJob
from tests.inference_gateway.control.doubles import job as record
from tests.slurm_kit import NOW_S, FakeSlurm

TEXT = """
name: t
directory: state
listen: {host: 127.0.0.1}
job: {handover_s: 300}
services: {chat: {replica: {command: "x {port}"}}}
"""
OWN = 1


@dataclass
class Plane:
    """A data plane. `faults` are raised by its next starts; the services `refuses` are no configuration."""

    refuses: ClassVar[tuple[str, ...]] = ()
    settings: GatewaySettings
    running: bool = False
    faults: list[GatewayError] = field(default_factory=list)
    starts: list[Files | None] = field(default_factory=list)
    applied: list[tuple[str, ...]] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    finishing: bool = False
    handed_on: list[tuple[str, list[Endpoint]]] = field(default_factory=list)

    @property
    def files(self) -> Files:
        return Files(self.settings.directory)

    def start(self, before: Files | None = None) -> None:
        self.starts.append(before)
        if self.faults:
            raise self.faults.pop(0)
        self.check(self.settings)
        self.running = True

    def alive(self) -> bool:
        return self.running

    def apply(self, settings: GatewaySettings) -> None:
        self.check(settings)
        self.applied.append(tuple(service.name for service in settings.services))

    def check(self, settings: GatewaySettings) -> None:
        if tuple(service.name for service in settings.services) == self.refuses:
            raise StartError("refused")

    def finish(self) -> None:
        self.finishing = True
        self.running = bool(self.requests)

    def open_requests(self) -> list[ServerState]:
        """Those of each second in turn; it ends with the last."""
        if not self.finishing:
            return []
        in_flight = self.requests.pop(0)
        self.running = bool(self.requests)
        return [ServerState("chat", "chat-1", "", 0, "draining", in_flight)]

    def traffic(self) -> list[Traffic]:
        return []

    def hand_on(self, service: str, replicas: list[Endpoint]) -> None:
        self.handed_on.append((service, replicas))

    def stop(self, grace_s: float) -> None:
        self.stopped.append(grace_s)


@dataclass
class Control:
    """The control plane's process."""

    name: str
    command: list[str]
    tended: int = 0
    ended: int = 0

    def keep_running(self) -> None:
        self.tended += 1

    def end(self) -> None:
        self.ended += 1


@dataclass
class Script:
    """What happens in one wait of the supervisor after the other; also its clock."""

    now_s: float = NOW_S
    steps: list[Callable[[], object]] = field(default_factory=list)
    is_set: bool = False

    def time(self) -> float:
        return self.now_s

    monotonic = time

    def wait(self, _seconds: float) -> None:
        assert self.steps, "it goes on"
        assert not self.is_set, "no wait: the processor is burnt"
        self.now_s += 1
        self.steps.pop(0)()

    def set(self) -> None:
        """A signal has come."""
        self.is_set = True

    def clear(self) -> None:
        """It has been seen."""
        self.is_set = False


def made_into(kept: list[Any], make: Callable[..., Any], *arguments: Any) -> Any:
    """Make one and keep it, too."""
    kept.append(make(*arguments))
    return kept[-1]


class Gateway:
    """A supervisor between doubles, in the Slurm job `OWN` or in none."""

    def __init__(
        self,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        text: str = TEXT,
        after: int | None = None,
        *,
        in_job: bool,
    ) -> None:
        self.services = directory / "services.yaml"
        self.services.write_text(text)
        self.paths = GatewayPaths(directory / "state")
        self.script = Script()
        self.slurm = FakeSlurm()
        if in_job:
            monkeypatch.setenv("SLURM_JOB_ID", str(OWN))
            self.slurm.known[OWN] = record(OWN, "gateway-t", jobs.tag("t"), state="RUNNING", start_s=NOW_S)
        else:
            monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        self.handlers: dict[int, Callable[[int, FrameType | None], None]] = {}
        monkeypatch.setattr(signal, "signal", self.handlers.__setitem__)
        monkeypatch.setattr(tempfile, "tempdir", str(directory))
        for module in (loop, jobs, succession):
            monkeypatch.setattr(module, "time", self.script)
        self.planes: list[Plane] = []
        self.controls: list[Control] = []
        monkeypatch.setattr(loop, "HaproxyDataPlane", partial(made_into, self.planes, Plane))
        monkeypatch.setattr(loop, "Child", partial(made_into, self.controls, Control))
        monkeypatch.setattr(loop, "CliClient", lambda _timeout_s: self.slurm)
        with monkeypatch.context() as waits:
            waits.setattr("threading.Event", lambda: self.script)
            self.supervisor = Supervisor(accepted.read(self.services), (), after)

    @property
    def plane(self) -> Plane:
        return self.planes[-1]

    @property
    def control(self) -> Control:
        return self.controls[-1]

    def run(self, *steps: Callable[[], object]) -> int:
        """Run with these steps; how many were left when it ended."""
        self.script.steps = list(steps)
        self.supervisor.run()
        return len(self.script.steps)

    def send(self, number: int) -> None:
        self.handlers[number](number, None)
        assert self.script.is_set, "it is looked at without delay"

    def term(self) -> None:
        self.send(signal.SIGTERM)

    def later(self, seconds: float) -> Callable[[], None]:
        def pass_by() -> None:
            self.script.now_s += seconds - 1

        return pass_by

    def report(
        self, *, closing: bool = False, replicas: int = 0, removed: int = 0, **fields: Any
    ) -> Callable[[], object]:
        """The control plane reports, also replicas of a service that a reload has `removed`."""
        one = ReplicaReport("chat-1", "serving", 7, "h", 1, burst=False, in_flight=0, server="up", since_s=0.0,
                            ends_s=None, reason="")  # fmt: skip
        counts = (0, 0, 0, 1, 1, 8, "", 0, 0, 0, 1.0)
        service = ServiceReport("chat", *counts, given_up=False, next_in_s=None, replicas=(one,) * replicas)
        known = {"run_directory": str(self.plane.settings.directory), **fields}

        def write() -> None:
            now_s = known.get("time_s", self.script.now_s)
            shown = Report("t", known["run_directory"], now_s, closing, (service,), (one,) * removed)
            state.save(self.paths.status, shown)

        return write

    def is_announced(self) -> bool:
        return self.paths.address.exists()


def nothing() -> None:
    """A second passes."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path: sockets would lie in it."""
    with tempfile.TemporaryDirectory(prefix="igw") as made:
        yield Path(made)


@pytest.fixture
def gateway(place: Path, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    return Gateway(place, monkeypatch, in_job=False)


@pytest.fixture
def in_job(place: Path, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    return Gateway(place, monkeypatch, in_job=True)


class TestTheAddress:
    def test_the_address_is_published_when_haproxy_has_its_replicas(self, gateway: Gateway) -> None:
        seen: list[bool] = []

        def look() -> None:
            seen.append(gateway.is_announced())

        gateway.run(
            gateway.report(run_directory="/that/of/the/predecessor"),
            look,
            gateway.report(time_s=NOW_S),  # from before a restart
            look,
            gateway.report(),
            look,
            look,
            gateway.term,
        )
        assert seen == [False, False, True, True]
        assert not gateway.is_announced(), "it is taken back at the end"

    def test_the_address_is_published_after_half_a_minute_without_a_report(self, gateway: Gateway) -> None:
        seen: list[tuple[bool, str]] = []

        def look() -> None:
            seen.append((gateway.is_announced(), gateway.paths.address.read_text() if gateway.is_announced() else ""))

        gateway.run(gateway.later(29), look, look, gateway.term)
        assert seen == [(False, ""), (True, "http://127.0.0.1:8080\n")]

    @pytest.mark.parametrize("listen", ["0.0.0.0", "::"])  # noqa: S104
    def test_a_gateway_on_all_addresses_publishes_its_host_name(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, listen: str
    ) -> None:
        monkeypatch.setattr(socket, "getfqdn", lambda: "n1.example")
        text = TEXT.replace("127.0.0.1", f'"{listen}", keys: keys.yaml, certificate: c.pem')
        (place / "keys.yaml").write_text("keys: {}\n")
        (place / "c.pem").touch()
        gateway = Gateway(place, monkeypatch, text, in_job=False)
        seen: list[str] = []
        gateway.run(gateway.report(), lambda: seen.append(gateway.paths.address.read_text()), gateway.term)
        assert seen == ["https://n1.example:8080\n"]
        assert gateway.control.command[-2:] == ["--gateway-host", "n1.example"]

    def test_an_ipv6_address_is_published_in_brackets(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gateway = Gateway(place, monkeypatch, TEXT.replace("127.0.0.1", '"::1"'), in_job=False)
        seen: list[str] = []
        gateway.run(gateway.report(), lambda: seen.append(gateway.paths.address.read_text()), gateway.term)
        assert seen == ["http://[::1]:8080\n"]

    def test_a_ready_job_tells_its_predecessor(self, in_job: Gateway) -> None:
        told: list[bool] = []

        def look() -> None:
            told.append(in_job.paths.handover(OWN).exists())

        in_job.run(look, in_job.report(), look, in_job.term)
        assert told == [True, False]

    def test_a_predecessor_is_told_where_the_disk_is_full(self, in_job: Gateway) -> None:
        """It would keep the requests until Slurm kills it. There is room for names, but not for a byte."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)

        def fill() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))

        in_job.paths.make()
        fill()
        try:
            in_job.run(lambda: None, in_job.term)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        before_it = Succession(in_job.slurm, in_job.paths, (), 9, handing_over=True, _successor=OWN)
        assert before_it.taken_over()

    def test_a_job_has_a_successor_before_its_predecessor_is_told(self, in_job: Gateway) -> None:
        """The predecessor then ends; if this job died now, no job of the gateway would be left."""
        queued: list[int] = []
        tell = Path.touch

        def look(path: Path) -> None:
            if path == in_job.paths.handover(OWN):
                queued.append(len(in_job.slurm.submissions))
            tell(path)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Path, "touch", look)
            in_job.run(in_job.term)
        assert queued == [1]

    def test_a_silent_slurm_holds_up_no_handover(self, in_job: Gateway) -> None:
        in_job.slurm.silent = True
        in_job.run(lambda: None, in_job.term)
        assert in_job.paths.handover(OWN).exists()

    def test_a_gateway_outside_of_a_job_writes_no_handover_file(self, gateway: Gateway) -> None:
        gateway.run(lambda: None, gateway.term)
        assert not list(gateway.paths.root.glob("*handover*"))


class TestTheEnd:
    def test_others_see_that_its_directory_is_in_use(self, gateway: Gateway) -> None:
        seen: list[bool] = []

        def look() -> None:
            with gateway_paths.supervised(gateway.plane.settings.directory) as ours:
                seen.append(ours)

        gateway.run(look, gateway.term)
        assert seen == [False]

    def test_on_sigterm_requests_get_ten_seconds(self, gateway: Gateway) -> None:
        run_directory = gateway.plane.settings.directory
        assert gateway.run(nothing, gateway.term, nothing) == 1
        assert (gateway.plane.stopped, gateway.control.ended) == ([10.0], 1)
        assert not run_directory.exists()

    def test_it_serves_while_its_successor_is_starting(self, in_job: Gateway) -> None:
        """The time limit is over before the successor is there."""
        in_job.script.now_s = NOW_S + 3400
        steps = (in_job.report(), nothing, in_job.term, *[nothing] * 16, nothing)
        assert in_job.run(*steps) == 1
        assert in_job.slurm.released
        assert in_job.plane.stopped == [300.0], "what is in flight has the time there is left"

    def test_it_ends_when_its_successor_takes_requests(self, in_job: Gateway) -> None:
        in_job.script.now_s = NOW_S + 3400
        ready = lambda: in_job.paths.handover(2).touch()  # noqa: E731
        assert in_job.run(in_job.report(), nothing, nothing, ready, nothing) == 1
        assert in_job.plane.stopped == [300.0]

    def test_its_successor_sees_what_it_still_has_in_flight(self, in_job: Gateway) -> None:
        """Until idle connections have ended it says that it still takes requests; the file goes with the last one."""
        in_job.script.now_s = NOW_S + 3400
        in_job.plane.requests = [2, 1, 1]
        shown = in_job.paths.leaving / f"{OWN}.json"
        seen: list[tuple[float, list[int]]] = []

        def look() -> None:
            told = state.read(shown, PlaneReport)
            assert told is not None
            seen.append((told.orders_s, [server.in_flight for server in told.servers]))

        in_job.control.end = look  # type: ignore[method-assign]
        ready = lambda: in_job.paths.handover(2).touch()  # noqa: E731
        in_job.run(in_job.report(), nothing, nothing, ready, look, in_job.later(70), look)
        assert seen == [(0.0, []), (0.0, [2]), (NO_MORE_S, [1])]
        assert not shown.exists()
        assert in_job.plane.stopped == [228.0]

    def test_requests_that_wait_get_the_replicas_of_its_successor(self, in_job: Gateway) -> None:
        in_job.script.now_s = NOW_S + 3400
        in_job.plane.requests = [0, 0]
        ready = lambda: in_job.paths.handover(2).touch()  # noqa: E731
        leads = in_job.report(run_directory="/of/the/successor", replicas=1)
        in_job.run(in_job.report(), nothing, nothing, ready, leads, nothing)
        assert in_job.plane.handed_on == [("chat", [Endpoint("chat-1", "h", 1, 8)])]

    def test_a_time_limit_that_an_admin_has_lowered_is_seen_within_a_minute(self, in_job: Gateway) -> None:
        def lower() -> None:
            in_job.slurm.set(OWN, time_limit_s=120.0, start_s=in_job.script.now_s - 90)

        released: list[int] = []

        def look() -> None:
            released.append(len(in_job.slurm.released))

        ready = lambda: in_job.paths.handover(2).touch()  # noqa: E731
        in_job.run(in_job.report(), nothing, lower, look, in_job.later(60), look, ready)
        assert released == [0, 1]

    def test_a_handover_before_its_time_does_not_end_it(self, in_job: Gateway) -> None:
        other = lambda: in_job.paths.handover(2).touch()  # noqa: E731
        assert in_job.run(in_job.report(), nothing, other, nothing, in_job.term, nothing) == 1
        assert in_job.plane.stopped == [10.0]

    def test_gateway_down_waits_until_all_replicas_are_drained(self, gateway: Gateway) -> None:
        close = gateway.paths.closing.touch
        steps = (
            gateway.report(replicas=1),
            close,
            gateway.report(replicas=0),  # from before it had seen that
            gateway.report(closing=True, replicas=1),
            gateway.report(closing=True, removed=1),
            gateway.report(closing=True, replicas=0),
            nothing,
        )
        assert gateway.run(*steps) == 1

    def test_without_gateway_down_it_runs_on_without_replicas(self, gateway: Gateway) -> None:
        assert gateway.run(gateway.report(closing=True), nothing, gateway.term, nothing) == 1


class TestTheDataPlane:
    def test_a_data_plane_that_ends_is_restarted(self, gateway: Gateway) -> None:
        def die() -> None:
            gateway.plane.running = False

        gateway.run(nothing, die, nothing, nothing, gateway.term)
        assert gateway.plane.starts == [None, None]

    def test_the_data_plane_is_looked_at_while_slurm_hangs(self, in_job: Gateway) -> None:
        """Each of its commands runs into its timeout, of 15 s."""
        looks: list[float] = []
        calls: list[float] = []

        def hang(prefix: str) -> tuple[SlurmJob, ...]:
            calls.append(in_job.script.now_s)
            in_job.script.now_s += 15
            raise SlurmUnreachableError("squeue: no answer from slurmctld")

        def look() -> bool:
            looks.append(in_job.script.now_s)
            return True

        in_job.slurm.tagged_jobs = hang  # type: ignore[method-assign]
        in_job.plane.alive = look  # type: ignore[method-assign]
        in_job.run(*[nothing] * 120, in_job.term)
        assert len([second for second in looks if second < NOW_S + 60]) > 10
        assert [after - before - 15 for before, after in pairwise(calls)] == [5, 10, 20, 30, 30]

    def test_a_data_plane_that_does_not_start_is_tried_every_five_seconds(self, gateway: Gateway) -> None:
        def break_down() -> None:
            gateway.plane.running = False
            gateway.plane.faults = [StartError("no"), GatewayError("no")]

        seen: list[int] = []

        def count() -> None:
            seen.append(len(gateway.plane.starts))

        gateway.run(break_down, *[count] * 12, gateway.term)
        assert seen == [2] * 5 + [3] * 5 + [4] * 2

    def test_a_port_in_use_ends_a_gateway_outside_of_a_job(self, gateway: Gateway) -> None:
        gateway.plane.faults = [StartError("port 8080 is in use")]
        with pytest.raises(StartError, match="8080"):
            gateway.run()

    @pytest.mark.parametrize("fault", [StartError("in use"), ActivatorError("does not answer")])
    def test_a_gateway_in_a_job_waits_for_its_port(self, in_job: Gateway, fault: GatewayError) -> None:
        """Its predecessor may need a while to end; a busy node, to start the activator."""
        in_job.plane.faults = [fault] * 3
        in_job.run(*[nothing] * 3, nothing, in_job.term)
        assert len(in_job.plane.starts) == 4

    def test_waiting_for_the_port_ends_after_two_minutes_or_by_sigterm(self, in_job: Gateway) -> None:
        in_job.plane.faults = [StartError("in use")] * 3
        with pytest.raises(StartError):
            in_job.run(nothing, in_job.later(121))
        in_job.plane.faults = [StartError("in use")] * 3
        with pytest.raises(StartError):
            in_job.run(in_job.term)

    @pytest.mark.parametrize("ends", [lambda gateway: gateway.later(121)(), Gateway.term])
    def test_a_successor_that_cannot_serve_leaves_it_to_another_job(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, ends: Callable[[Gateway], None]
    ) -> None:
        """Else a port that a stranger has on one node would end the gateway for ever."""
        gateway = Gateway(place, monkeypatch, after=9, in_job=True)
        gateway.plane.faults = [StartError("in use")] * 3
        with pytest.raises(StartError):
            gateway.run(nothing, lambda: ends(gateway))
        ((script, options),) = gateway.slurm.submissions
        assert "--after 1" in script
        assert "--begin=now+60" in options
        assert not any(option.startswith("--dependency") for option in options)
        assert not gateway.plane.settings.directory.exists()

    @pytest.mark.parametrize("first", [True, False], ids=["of `up`", "while `down` ends it"])
    def test_a_gateway_that_has_not_served_or_closes_leaves_none(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, *, first: bool
    ) -> None:
        gateway = Gateway(place, monkeypatch, after=None if first else 9, in_job=True)
        if not first:
            gateway.paths.closing.touch()
        gateway.plane.faults = [StartError("in use")] * 3
        with pytest.raises(StartError):
            gateway.run(nothing, gateway.later(121))
        assert gateway.slurm.submissions == []

    def test_a_successor_tries_on_while_slurm_takes_no_other_job(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gateway = Gateway(place, monkeypatch, after=9, in_job=True)
        gateway.slurm.silent = True
        gateway.plane.faults = [StartError("in use")] * 3
        gateway.run(nothing, gateway.later(121), nothing, gateway.term)
        assert len(gateway.plane.starts) == 4
        assert gateway.plane.running

    def test_a_signal_while_waiting_for_the_port_causes_no_extra_try(self, in_job: Gateway) -> None:
        in_job.plane.faults = [StartError("in use")] * 3
        in_job.run(lambda: in_job.send(signal.SIGHUP), nothing, nothing, in_job.term)
        assert len(in_job.plane.starts) == 4

    def test_the_control_plane_is_kept_running(self, gateway: Gateway) -> None:
        gateway.run(*[nothing] * 4, gateway.term)
        assert gateway.control.tended == 5 + 1

    def test_a_file_server_that_fails_for_a_while_ends_nothing(self, in_job: Gateway) -> None:
        """As NFS fails with ESTALE or EIO; a directory is no file to read either."""
        in_job.run(
            in_job.report(),
            in_job.paths.reload.mkdir,
            nothing,
            in_job.paths.reload.rmdir,
            nothing,
            in_job.paths.reload.mkdir,
            in_job.term,
        )
        assert (in_job.control.tended, in_job.plane.stopped) == (7 + 1, [10.0])


class TestAnEditedFile:
    def test_the_first_configuration_is_kept(self, gateway: Gateway) -> None:
        kept = accepted.kept(gateway.paths.accepted, gateway.services)
        assert kept == accepted.read(gateway.services)

    def test_a_gateway_starts_again_on_a_full_disk(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(path: Path, _text: str, *, mode: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        monkeypatch.setattr(accepted, "replace_file", refuse)
        accepted.read(gateway.services).keep()
        gateway.services.write_text(self.MORE)
        with pytest.raises(GatewayError, match=r"accepted/services\.yaml: cannot be written: No space left"):
            accepted.read(gateway.services).keep()

    MORE = TEXT.replace("services: {", 'services: {more: {replica: {command: "x {port}"}}, ')

    def test_an_edited_file_is_applied_and_kept_and_restarts_the_control_plane(self, gateway: Gateway) -> None:
        first = gateway.control
        edit = lambda: gateway.services.write_text(self.MORE)  # noqa: E731
        gateway.run(gateway.report(), edit, lambda: gateway.send(signal.SIGHUP), nothing, gateway.term)
        assert gateway.plane.applied == [("more", "chat")]
        assert gateway.control is not first
        assert (first.ended, gateway.control.ended) == (1, 1)
        kept = accepted.kept(gateway.paths.accepted, gateway.services)
        assert kept is not None
        assert tuple(kept.section.services) == ("more", "chat")

    def test_the_batch_worker_ends_before_haproxy_changes(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """HAProxy answers 404 at once for a service that is gone, which a worker takes for a request's answer."""
        text = TEXT.replace('port}"}', 'port}"}, batches: idle')
        gateway = Gateway(place, monkeypatch, text, in_job=False)
        ended: list[list[int]] = []

        def refuse(_settings: GatewaySettings) -> None:
            ended.append([child.ended for child in gateway.controls])
            raise StartError("refused")

        monkeypatch.setattr(gateway.plane, "apply", refuse)
        edit = lambda: gateway.services.write_text(text.replace("chat", "talk"))  # noqa: E731
        gateway.run(gateway.report(), edit, lambda: gateway.send(signal.SIGHUP), nothing, gateway.term)
        assert [child.name for child in gateway.controls] == ["control plane", "batch worker"]
        assert ended == [[0, 1]]
        assert [child.tended for child in gateway.controls] == [6, 6], "a refused reload ends nothing for good"

    def test_an_edited_timeout_holds_for_the_supervisors_own_commands(
        self, in_job: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where slurmctld takes longer than at the start no successor was queued, whatever a reload had changed."""
        in_job.slurm.silent = True
        patient = FakeSlurm(known=in_job.slurm.known)
        monkeypatch.setattr(loop, "CliClient", {30.0: patient}.__getitem__)

        def edit() -> None:
            in_job.services.write_text(f"{TEXT}slurm: {{timeout_s: 30}}\n")
            in_job.send(signal.SIGHUP)

        in_job.run(in_job.report(), nothing, edit, in_job.later(1200), nothing, in_job.term)
        assert len(patient.submissions) == 1

    def test_a_successor_applies_what_was_edited_once_it_serves(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gateway = Gateway(place, monkeypatch, after=9, in_job=True)
        gateway.services.write_text(self.MORE)
        gateway.run(gateway.report(), nothing, nothing, gateway.term)
        assert gateway.plane.applied == [("more", "chat")]

    @pytest.mark.parametrize("refused", ["chat", "more"])
    def test_a_successor_starts_with_the_edited_file_or_the_one_in_force(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, refused: str
    ) -> None:
        """This node's HAProxy may be of another version; the edited one may have a certificate without its key."""
        gateway = Gateway(place, monkeypatch, after=9, in_job=True)
        accepted.read(gateway.services).keep()
        gateway.services.write_text(self.MORE)
        in_use = StartError("in use")
        gateway.plane.faults = [in_use]
        monkeypatch.setattr(Plane, "refuses", ("chat",) if refused == "chat" else ("more", "chat"))
        (other := gateway.paths.of(2)).gateway.touch()
        gateway.run(nothing, nothing, gateway.report(), nothing, nothing, gateway.term)
        kept = accepted.kept(gateway.paths.accepted, gateway.services)
        assert kept is not None
        assert tuple(kept.section.services) == (("more", "chat") if refused == "chat" else ("chat",))
        assert other.reload.exists(), "the other of two gateways is asked to take it, too"

    def test_a_file_that_cannot_be_kept_is_not_applied(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next control plane would read the old one."""

        def full(*_: object) -> None:
            raise GatewayError("disk full")

        edit = lambda: gateway.services.write_text(self.MORE)  # noqa: E731
        monkeypatch.setattr(Accepted, "keep", full)
        gateway.run(gateway.report(), edit, lambda: gateway.send(signal.SIGHUP), nothing, gateway.term)
        assert gateway.plane.applied == [("more", "chat"), ("chat",)]
        assert gateway.control.ended == 1
