"""Start, adoption, death and restart of the data plane."""

import errno
import http.client
import json
import os
import resource
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from inference_gateway.control import replica as control
from inference_gateway.control.data_plane_sync import DataPlaneSync, changes
from inference_gateway.control.replica import Phase
from inference_gateway.control.state import EventLog
from inference_gateway.dataplane.endpoints import ActivatorProcess, EndpointFiles, read_state
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.process import HaproxyProcess, affordable_connections
from inference_gateway.dataplane.runtime import RuntimeApi
from inference_gateway.dataplane.settings import (
    ApiKey,
    BatchSettings,
    Canary,
    GatewaySettings,
    ServiceSettings,
    digest_of,
)
from inference_gateway.dataplane.statistics import HaproxyStatistics
from inference_gateway.errors import ActivatorError, NotRunningError, RefusedError, SettingsError, StartError
from inference_gateway.model import Endpoint, StartForecast
from inference_gateway.replicas.identity import Authority
from slurm_plugin.devcluster.machine import reserved
from tests.inference_gateway.rig import CLIENT_KEY, Replica, gateway, wait_until

CHAT = ServiceSettings("chat")


def test_a_taken_port_is_named(directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        plane = HaproxyDataPlane(GatewaySettings(directory / "taken", taken.getsockname()[1]))
        with pytest.raises(StartError, match=f"already in use.*127.0.0.1:{taken.getsockname()[1]}"):
            plane.start()
    assert not read_state(plane.files.activator_socket)
    assert ActivatorProcess(plane.files).pid() is None


def test_haproxy_is_found_where_debian_installs_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")  # a user's, by login.defs of Debian
    with gateway(directory / "user", CHAT) as rig:
        assert rig.ask("GET", "/healthz").status == 200


def test_a_missing_haproxy_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(StartError, match="neither on PATH nor in /usr/sbin"):
        HaproxyProcess(Files(directory)).check()


def test_a_port_of_another_gateway_is_not_shared(directory: Path) -> None:
    with gateway(directory / "one") as first:
        second = HaproxyDataPlane(GatewaySettings(directory / "two", first.port))
        with pytest.raises(StartError, match="in use"):
            second.start()
        second.stop(grace_s=0.0)


def test_the_next_process_finds_the_running_one(directory: Path, servers: list[Replica]) -> None:
    with gateway(directory / "adopted", CHAT) as rig:
        rig.plane.add("chat", servers[0].endpoint)
        worker = RuntimeApi(rig.plane.files.master_socket).ask("show proc")
        again = HaproxyDataPlane(rig.plane.settings)
        again.start()
        assert [(server.name, server.state) for server in again.servers()] == [("r1", "up")]
        found = RuntimeApi(rig.plane.files.master_socket).ask("show proc")
        assert [line.split()[:3] for line in found.splitlines()] == [line.split()[:3] for line in worker.splitlines()]


@pytest.mark.parametrize("victim", ["pid", "activator_pid"])
def test_what_was_killed_is_started_again_with_its_replicas(
    directory: Path, servers: list[Replica], victim: str
) -> None:
    with gateway(directory / victim, CHAT) as rig:
        rig.plane.add("chat", servers[0].endpoint)
        rig.plane.add("chat", servers[1].endpoint)
        rig.plane.drain("chat", "r2")
        worker = rig.plane.worker()
        os.kill(int(getattr(rig.plane.files, victim).read_text()), signal.SIGKILL)
        wait_until(lambda: not rig.plane.alive())
        rig.plane.start()
        assert rig.plane.alive()
        assert (rig.plane.worker() == worker) is (victim == "activator_pid")
        assert {rig.complete("chat").headers["x-replica"] for _ in range(4)} == {"r1"}
        assert rig.ask("GET", "/healthz").status == 200


def test_without_the_activator_replicas_go_on(directory: Path, servers: list[Replica]) -> None:
    with gateway(directory / "alone", CHAT, ServiceSettings("empty")) as rig:
        rig.plane.add("chat", servers[0].endpoint)
        os.kill(int(rig.plane.files.activator_pid.read_text()), signal.SIGKILL)
        wait_until(lambda: not rig.plane.alive())
        assert rig.complete("chat").status == 200
        refused = rig.complete("empty", idempotency_key="1")  # its socket may close a moment after it
        assert (refused.status, refused.headers.get("retry-after")) == (503, "30"), refused
        wait_until(lambda: rig.plane.remove("chat", "r1"))


def test_an_activator_that_cannot_be_started_is_told_of_and_started_later(directory: Path) -> None:
    with reserved(1) as (port,):
        plane = HaproxyDataPlane(GatewaySettings(directory / "late", port, services=(CHAT,)))
        plane.files.activator_log.mkdir(parents=True)
        try:
            with pytest.raises(ActivatorError, match=r"activator\.log: Is a directory"):
                plane.start()
            plane.files.activator_log.rmdir()
            plane.start()
            assert plane.alive()
        finally:
            plane.stop(grace_s=0.0)


def test_a_stats_socket_that_is_gone(directory: Path, servers: list[Replica]) -> None:
    with gateway(directory / "gone", CHAT) as rig:
        rig.plane.add("chat", servers[0].endpoint)
        rig.plane.files.stats_socket.unlink()
        for call in (
            rig.plane.servers,
            lambda: rig.plane.add("chat", servers[1].endpoint),
            lambda: rig.plane.drain("chat", "r1"),
        ):
            with pytest.raises(NotRunningError, match=r"stats\.sock: HAProxy cannot be reached"):
                call()
        assert rig.complete("chat").status == 200, "requests go on"


def test_while_it_finishes_its_requests_are_known(directory: Path, servers: list[Replica]) -> None:
    """Told to end, HAProxy closes its stats socket at once."""
    servers[0].behave(first_token_ms=2000.0)
    with gateway(directory / "leaving", CHAT) as rig, ThreadPoolExecutor(1) as client:
        rig.plane.add("chat", servers[0].endpoint)
        answer = client.submit(rig.complete, "chat")

        def in_flight() -> list[tuple[int, int]]:
            [server], [traffic] = rig.plane.open_requests(), rig.plane.traffic()
            return [(server.in_flight, traffic.in_flight)]

        wait_until(lambda: in_flight() == [(1, 1)])
        rig.plane.finish()
        wait_until(lambda: not listens(rig.port))
        assert in_flight() == [(1, 1)]
        assert answer.result().status == 200
        wait_until(lambda: not rig.plane.alive())
        with pytest.raises(NotRunningError):
            rig.plane.open_requests()


def test_while_it_finishes_an_idle_connection_has_one_more_request(directory: Path, servers: list[Replica]) -> None:
    """A closed one would be an error to a client that sends at that moment."""
    with gateway(directory / "idle", CHAT) as rig:
        rig.plane.add("chat", servers[0].endpoint)
        link = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=20)
        asked = "POST", "/v1/chat/completions", json.dumps({"model": "chat"}), {"authorization": f"Bearer {CLIENT_KEY}"}
        link.request(*asked)
        assert link.getresponse().read()
        rig.plane.finish()
        wait_until(lambda: not listens(rig.port))
        link.request(*asked)
        answer = link.getresponse()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        answer.read()
        wait_until(lambda: not rig.plane.alive())


def test_while_it_finishes_a_request_that_waits_reaches_a_new_replica(directory: Path, servers: list[Replica]) -> None:
    with gateway(directory / "waits", CHAT) as rig, ThreadPoolExecutor(1) as client:
        answer = client.submit(rig.complete, "chat")
        wait_until(lambda: rig.plane.traffic()[0].queued)
        rig.plane.finish()
        wait_until(lambda: not listens(rig.port))
        rig.plane.hand_on("chat", [servers[0].endpoint])
        assert answer.result().status == 200
        wait_until(lambda: not rig.plane.alive())


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_predecessor_may_have_a_longer_name_than_a_socket(directory: Path, tmp_path: Path) -> None:
    """As where its /tmp is found through /proc; HAProxy cuts a longer one, and then finds the port in use."""
    with gateway(directory / "before", CHAT) as rig:
        alias = tmp_path / ("x" * 100)
        alias.symlink_to(rig.plane.files.directory)
        after = HaproxyDataPlane(replace(rig.plane.settings, directory=directory / "after"))
        try:
            after.start(Files(alias, rig.plane.files.directory))
            assert (rig.plane.alive(), after.alive()) == (True, True)
        finally:
            after.stop(grace_s=0.0)


def test_nobody_answers_on_the_socket(directory: Path) -> None:
    path = directory / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(NotRunningError, match=r"no answer from HAProxy within 0\.05 s"):
            RuntimeApi(path, timeout_s=0.05).ask("show info")


def test_commands_that_haproxy_refuses(directory: Path, servers: list[Replica]) -> None:
    with gateway(directory / "refused", CHAT) as rig:
        api = RuntimeApi(rig.plane.files.stats_socket)
        with pytest.raises(RefusedError, match=r"No such server.*to del server service_chat/nobody"):
            api.order(["del server service_chat/nobody"])
        rig.plane.add("chat", servers[0].endpoint)
        rig.plane.add("chat", Endpoint("r1", "127.0.0.1", servers[1].port, 3))
        assert rig.complete("chat").headers["x-replica"] == "r2", "adding again changes the address"
        with pytest.raises(SettingsError, match="no service 'nix'"):
            rig.plane.add("nix", servers[0].endpoint)
        assert rig.plane.remove("chat", "never-there")


def test_a_configuration_that_haproxy_refuses_changes_nothing(directory: Path, servers: list[Replica]) -> None:
    with gateway(directory / "bad", CHAT) as rig:
        rig.plane.add("chat", servers[0].endpoint)
        bad = replace(rig.plane.settings, certificate="")  # as of a file that was not written to its end
        with pytest.raises(StartError, match=r"certificate\.pem"):
            rig.plane.apply(bad)
        assert rig.complete("chat").status == 200
        more = replace(rig.plane.settings, services=(CHAT, ServiceSettings("more")))
        rig.plane.apply(more)
        rig.plane.add("more", servers[1].endpoint)
        assert rig.complete("more").headers["x-replica"] == "r2", "the next reload works"
        again = HaproxyDataPlane(rig.plane.settings)
        again.start()
        assert rig.complete("chat").status == 200
        with pytest.raises(SettingsError, match="port of a running gateway"):
            rig.plane.apply(replace(rig.plane.settings, port=1))


def test_what_could_not_be_written_is_in_force_when_it_is_tried_again(directory: Path, servers: list[Replica]) -> None:
    """As on a full disk: the first files have the new configuration, and HAProxy has the old one."""
    with gateway(directory / "full", CHAT) as rig:
        rig.add("chat", servers[0].endpoint)
        revoked = replace(rig.plane.settings, keys=())
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # more than the keys, less than the Lua scripts
        try:
            with pytest.raises(StartError, match="cannot be written"):
                rig.plane.apply(revoked)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert rig.complete("chat").status == 200
        rig.plane.apply(revoked)
        assert rig.complete("chat").status == 401


def test_a_full_disk_does_not_keep_haproxy_from_draining(
    directory: Path, servers: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with gateway(directory / "life", CHAT) as rig:
        log = directory / "life" / "events.jsonl"
        sync = DataPlaneSync(rig.plane, {"chat": 4}, EventLog(log))
        endpoints = EndpointFiles(rig.plane.files.endpoints)
        first, second = (
            control.Replica("chat", one.name, "g1", Phase.SERVING, 0.0, 0.0, host="127.0.0.1", port=one.port)
            for one in servers[:2]
        )

        def states() -> dict[str, str]:
            return {server.name: server.state for server in rig.plane.servers()}

        sync.bring_in_line([first], rig.plane.servers())
        wanted = [first.to(Phase.DRAINING, 1.0, "ends soon"), second]
        with monkeypatch.context() as disk:
            disk.setattr("inference_gateway.dataplane.endpoints.replace_file", full)
            for _ in range(3):
                sync.bring_in_line(wanted, rig.plane.servers())
            wait_until(lambda: states() == {"r1": "draining", "r2": "up"})
            assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["data plane refused"] * 2, (
                "each once"
            )
        assert [one.name for one in endpoints.ready("chat")] == ["r1"]
        sync.bring_in_line(wanted, rig.plane.servers())
        assert [one.name for one in endpoints.ready("chat")] == ["r2"]
        assert all(server.listed for server in rig.plane.servers())


@pytest.mark.parametrize("leaves", [False, True])
def test_a_list_that_cannot_be_read_is_made_anew(directory: Path, servers: list[Replica], *, leaves: bool) -> None:
    """Until then no replica counted as listed, and each second all were added again, or drained."""
    with gateway(directory / f"anew-{leaves}", CHAT) as rig:
        log = directory / f"events-{leaves}.jsonl"
        sync = DataPlaneSync(rig.plane, {"chat": 4}, EventLog(log))
        endpoints = EndpointFiles(rig.plane.files.endpoints)
        wanted = [
            control.Replica("chat", one.name, "g1", Phase.SERVING, 0.0, 0.0, host="127.0.0.1", port=one.port)
            for one in servers[:2]
        ]
        sync.bring_in_line(wanted, rig.plane.servers())
        if leaves:
            wanted = [one.to(Phase.DRAINING, 1.0, "ends soon") for one in wanted]
            sync.bring_in_line(wanted, rig.plane.servers())
        whole = {replica.name for replica in endpoints.read("chat")}
        assert len(endpoints.ready("chat")) == (0 if leaves else 2)
        broken = directory / "broken"  # a new file, as every change makes
        broken.write_bytes(b"[")
        broken.replace(endpoints.path("chat"))
        sync.bring_in_line(wanted, rig.plane.servers())
        assert {replica.name for replica in endpoints.read("chat")} == whole, "also those that only finish requests"
        assert len(endpoints.ready("chat")) == (0 if leaves else 2)
        assert changes(wanted, rig.plane.servers(), {"chat": 4}) == ()
        assert not log.exists()


def test_servers_are_known_although_the_list_of_a_service_is_invalid(directory: Path, servers: list[Replica]) -> None:
    with gateway(directory / "life", CHAT, ServiceSettings("code")) as rig:
        rig.add("chat", servers[0].endpoint)
        rig.add("code", servers[1].endpoint)
        path = EndpointFiles(rig.plane.files.endpoints).path("chat")
        whole, listed = path.read_bytes(), {"chat": False, "code": True}
        path.write_bytes(b"[")
        assert {server.service: server.listed for server in rig.plane.servers()} == listed
        path.unlink()
        path.symlink_to(path)
        assert {server.service: server.listed for server in rig.plane.servers()} == listed
        path.unlink()
        path.write_bytes(whole)
        assert all(server.listed for server in rig.plane.servers())


def test_waiting_times_told_to_clients_can_be_changed(directory: Path) -> None:
    hasty = ServiceSettings("chat", cold_start_limit=0, retry_after_s=7)
    with gateway(directory / "wait", hasty) as rig:
        assert rig.complete("chat").headers["retry-after"] == "7"
        os.kill(int(rig.plane.files.activator_pid.read_text()), signal.SIGKILL)
        wait_until(lambda: not rig.plane.alive())
        rig.plane.expect("chat", StartForecast(90))
        assert rig.complete("chat", idempotency_key="1").headers["retry-after"] == "90"


def test_haproxy_starts_without_a_warning_with_all_that_can_be_set(directory: Path) -> None:
    plain = ServiceSettings("plain", paths=("/v1/embeddings", "/v1/files/*"), prompt_tokens_per_s=0)
    near = ServiceSettings("near", affinity="prefix", queue_target_s=2.0, repeat_posts="unanswered")
    read = ServiceSettings("read", models=("m/read",), prompt_tokens_per_s=9000, canary=Canary("near", 0.1))
    bob = ApiKey("bob", digest_of("bob"), ("read",), requests_per_minute=9, tokens_per_day=9, expires_s=1 << 40)
    keys = (bob, ApiKey("night", digest_of("night"), weight=2, priority="batch"))
    trust = Authority.of(directory / "identity").trust
    batches = BatchSettings(directory / "batches", 1 << 20, 10, 100)
    services = (CHAT, plain, near, read)
    with gateway(directory / "calm", *services, keys=keys, trust=trust, batches=batches, page="chat") as rig:
        messages = rig.plane.files.messages
        wait_until(lambda: "Loading success" in messages.read_text())
        # HAProxy 3.4 does not like to be started as root, which these tests may be.
        warnings = [line for line in messages.read_text().splitlines() if "[WARNING]" in line]
        assert [line for line in warnings if "started as root" not in line and "as the root user" not in line] == []


def test_files_are_for_this_user_alone(directory: Path) -> None:
    with gateway(directory / "private", CHAT) as rig:
        files = rig.plane.files
        assert files.directory.stat().st_mode & 0o077 == 0
        for path in (files.stats_socket, files.master_socket, files.activator_socket, files.configuration, files.keys):
            assert path.stat().st_mode & 0o677 == 0o600, path


def test_connections_are_bounded_by_open_files() -> None:
    assert affordable_connections(100, 10) == 100
    assert affordable_connections(10**9, 10) < 10**9


def test_a_reload_answers_once_more_on_a_connection_that_is_open(directory: Path, servers: list[Replica]) -> None:
    with gateway(directory / "idle", CHAT) as rig:
        rig.plane.add("chat", servers[0].endpoint)
        link = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=20)
        link.auto_open = 0  # no second connection in secret
        link.connect()
        for more in ("one", "two"):
            body = json.dumps({"model": "chat", "max_tokens": 1})
            link.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {CLIENT_KEY}"})
            answer = link.getresponse()
            answer.read()
            assert answer.status == 200
            rig.plane.apply(replace(rig.plane.settings, services=(CHAT, ServiceSettings(more))))
        assert answer.headers["connection"] == "close"
        link.close()


def test_a_thousand_services_and_one_more(directory: Path, servers: list[Replica]) -> None:
    many = tuple(replace(CHAT, name=f"chat-{number}") for number in range(1000))
    with gateway(directory / "many", *many) as rig:
        rig.plane.add("chat-999", servers[0].endpoint)
        assert rig.complete("chat-999").status == 200
        rig.plane.apply(replace(rig.plane.settings, services=(*many, CHAT)))
        rig.plane.add("chat", servers[1].endpoint)
        assert rig.complete("chat").headers["x-replica"] == "r2"
        assert rig.complete("chat-999").headers["x-replica"] == "r1"
        assert len(rig.plane.traffic()) == 1001


def test_another_limit_of_connections_is_in_force_after_a_reload(directory: Path) -> None:
    """Replicas that come and go change what HAProxy can afford, too; that alone is no reason for a reload."""
    with gateway(directory / "limit", CHAT, connection_limit=100) as rig:
        before = HaproxyStatistics(rig.plane.files).workers().reloads
        rig.plane.apply(replace(rig.plane.settings, connection_limit=60))
        assert HaproxyStatistics(rig.plane.files).workers().reloads == before + 1
        assert "\nMaxconn: 75\n" in RuntimeApi(rig.plane.files.stats_socket).ask("show info"), "60 and a quarter"
        rig.plane.apply(rig.plane.settings)
        assert HaproxyStatistics(rig.plane.files).workers().reloads == before + 1


def test_clients_of_a_service_that_gave_up_do_not_wait(directory: Path) -> None:
    with gateway(directory / "up", ServiceSettings("chat", cold_start_deadline_s=100)) as rig:
        with ThreadPoolExecutor(1) as client:
            waiting = client.submit(rig.complete, "chat")
            wait_until(lambda: [line.queued for line in rig.plane.traffic()] == [1])
            rig.plane.expect("chat", StartForecast(90, given_up=True))
            assert waiting.result().status == 503, "also those that wait already"
        refused = rig.complete("chat")
        assert (refused.status, refused.headers["retry-after"]) == (503, "90")
        assert "no replica of this service will start" in refused.json["error"]["message"]
        rig.plane.expect("chat", StartForecast(90))
        wait_until(lambda: 'given_up":true' not in rig.plane.files.starts.read_text())


def test_clients_of_a_service_that_a_reload_removes_do_not_wait(directory: Path) -> None:
    gone = ServiceSettings("gone", cold_start_deadline_s=40)
    with gateway(directory / "away", CHAT, gone) as rig, ThreadPoolExecutor(1) as client:
        waiting = client.submit(rig.complete, "gone")
        wait_until(lambda: [line.queued for line in rig.plane.traffic()] == [0, 1])
        rig.plane.apply(replace(rig.plane.settings, services=(CHAT,)))
        refused = waiting.result()
        assert (refused.status, refused.headers["retry-after"]) == (503, "30")
        assert "no replica of this service will start" in refused.json["error"]["message"]
