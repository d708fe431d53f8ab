"""What runs in a replica's job: a port without a race, a registration, and a gentle end."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference_gateway.replicas import reports, serve
from inference_gateway.replicas.identity import Authority, gateway_context
from inference_gateway.replicas.ports import address_towards, reserve, taken
from inference_gateway.replicas.relay import Relay
from inference_gateway.replicas.reports import Registration, Tokens
from inference_gateway.replicas.serve import AUTHORITY, IDENTITY
from tests.inference_gateway.strangers import stranger

# Answers one connection after another with its key, and says when SIGTERM has come.
SERVER = """
import os, signal, socket, sys
def end(*_):
    print("terminated", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
with socket.socket() as listener:
    listener.setsockopt(socket.SOL_SOCKET, getattr(socket, sys.argv[2]), 1)
    listener.bind((sys.argv[3], int(sys.argv[1])))
    listener.listen()
    while True:
        link, _ = listener.accept()
        link.sendall(os.environ["THE_KEY"].encode())
        link.close()
"""


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "replica").mkdir()
    authority = Authority.of(tmp_path / "identity")
    (tmp_path / "replica" / AUTHORITY).write_text(authority.trust.authority)
    (tmp_path / "replica" / IDENTITY).write_text(authority.replica("replica"))
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def begin(*command: str, grace_s: float = 0.0, **environment: str) -> subprocess.Popen[str]:
        words = command or (sys.executable, str(place / "server.py"), "{port}", "SO_REUSEADDR", "{host}")
        program = [sys.executable, "-m", "inference_gateway.replicas.serve", "--directory", str(place / "replica")]
        options = ["--gateway", "127.0.0.1", "--key-variable", "THE_KEY"]
        argv = [*program, *options, "--grace-s", str(grace_s), "--", *words]
        env = {**os.environ, "SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2", **environment}
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def said_at(told: Registration, place: Path) -> bytes:
    """What the server says to the gateway."""
    context = gateway_context(place / "identity")
    with (
        socket.create_connection((told.host, told.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="replica") as link,
    ):
        return link.recv(100)


def answers(told: Registration, place: Path) -> bool:
    try:
        return bool(said_at(told, place))
    except OSError:
        return False


def registered(place: Path) -> Registration:
    eventually(lambda: reports.registered(place / "replica") is not None)
    told = reports.registered(place / "replica")
    assert told is not None
    return told


def test_answers_do_not_wait_for_storage_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    went_on = []

    def hang(*_: object) -> None:
        begun.set()
        went_on.append(goes_on.wait(5))

    async def relayed() -> None:
        relay = Relay(1, "key", taken)
        relay.usage.add("alice", Tokens(1, 2, 3))
        task = asyncio.create_task(serve.report_work(relay, tmp_path))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        goes_on.set()  # as any other task, such as one that passes on an answer
        task.cancel()

    monkeypatch.setattr(reports, "replace_file", hang)
    monkeypatch.setattr(serve, "USAGE_S", 0.0)
    asyncio.run(relayed())
    assert went_on == [True]


@pytest.mark.parametrize("option", ["SO_REUSEADDR", "SO_REUSEPORT"])
def test_a_server_gets_its_port_and_its_key(
    place: Path, start: Callable[..., subprocess.Popen[str]], option: str
) -> None:
    start(sys.executable, str(place / "server.py"), "{port}", option, "{host}")
    told = registered(place)
    assert (told.host, told.job_id, told.restarts) == ("127.0.0.1", 17, 2)
    eventually(lambda: answers(told, place))
    key = place / "replica" / "key"
    assert said_at(told, place) == key.read_bytes().strip()
    assert len(key.read_text()) > 40
    assert key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_the_gateway_is_told_before_the_server(
    place: Path, start: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    """After SIGTERM, which Slurm sends to the server, too, nothing new reaches it."""
    process = start(grace_s=1.0)
    told = registered(place)
    eventually(lambda: answers(told, place))
    process.send_signal(number)
    eventually(lambda: reports.leaving(place / "replica"))
    assert answers(told, place) == (number is signal.SIGUSR1)
    out, _err = process.communicate(timeout=30)
    assert (process.returncode, out) == (7, "terminated\n")


def test_the_door_is_nobody_elses_and_open_to_the_gateway_alone(
    place: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    start()
    told = registered(place)
    eventually(lambda: answers(told, place))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", told.port))
    with socket.create_connection((told.host, told.port), timeout=60) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200" not in link.recv(1000)


def test_each_start_has_a_key_of_its_own(place: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    keys = set()
    for _ in range(2):
        start("true", "{port}").communicate(timeout=60)
        keys.add((place / "replica" / "key").read_text())
    assert len(keys) == 2


WAITING = """
import sys, time
print(sys.argv[1], flush=True)
time.sleep(3600)
"""


def test_a_port_that_a_stranger_takes_gets_nothing_and_the_replica_ends(
    place: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """While a model loads its port is only reserved, and any user of the node can listen there."""
    (place / "waiting.py").write_text(WAITING)
    process = start(sys.executable, str(place / "waiting.py"), "{port}")
    told = registered(place)
    assert process.stdout is not None
    with stranger(int(process.stdout.readline())) as seen:
        asked = [answers(told, place) for _ in range(3)]
        _out, err = process.communicate(timeout=120)
    assert asked == [False] * 3
    assert seen.received == b""
    assert process.returncode == 1
    assert "is taken by another user (uid" in err
    assert reports.leaving(place / "replica")


def test_a_command_that_is_not_there(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("/nowhere/server", "{port}")
    _out, err = process.communicate(timeout=30)
    assert (process.returncode, "/nowhere/server: No such file" in err) == (127, True)


def test_the_status_of_a_server_that_a_signal_ended(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("bash", "-c", "kill -9 $$")
    process.communicate(timeout=30)
    assert process.returncode == 128 + 9


def test_what_the_gateway_looks_at_exists_before_there_is_anything_to_report(place: Path) -> None:
    """An NFS client remembers for long that a file is missing."""
    reports.prepare(place)
    assert (place / "endpoint").exists() and (place / "ending").exists()
    assert reports.registered(place) is None
    assert not reports.leaving(place)
    reports.leave(place)
    assert reports.leaving(place)


def test_a_new_run_is_not_leaving(place: Path) -> None:
    reports.leave(place)
    reports.register(place, Registration("h", 1, 1))
    assert not reports.leaving(place)


def test_a_gateway_of_the_last_release_goes_on_with_new_replicas(place: Path) -> None:
    """It runs for days with what it has in memory: `leaving` exists for it as soon as the replica is to end."""
    reports.register(place, Registration("h", 1, 1))
    assert not (place / "leaving").exists()
    reports.leave(place)
    assert (place / "leaving").exists()


def test_a_replica_of_the_last_release_may_leave(place: Path) -> None:
    assert not reports.leaving(place)
    (place / "leaving").touch()
    assert reports.leaving(place)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "h"}', '{"host": "h", "port": 1, "job_id": 1, "x": 1}'])
def test_a_registration_that_is_none(place: Path, text: str) -> None:
    (place / "endpoint").write_text(text)
    assert reports.registered(place) is None


def test_reserved_ports_differ() -> None:
    held = [reserve() for _ in range(50)]
    ports = {holder.getsockname()[1] for holder in held}
    for holder in held:
        holder.close()
    assert len(ports) == 50
    assert all(20000 <= port < 32000 for port in ports)


def test_the_way_to_loopback_is_loopback() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
