"""Attacks on a gateway, and what they come to: `python -m benchmarks.gateway_attack --json`. Loopback only, bounded.

Each attack has figures of its own: what was forwarded to a replica, how many cold starts it caused (each would start a
job), what secrets a stranger has seen, and how much longer another client's requests took meanwhile (the ratio of its
99th percentile to that without an attack, from before and after it). The attacks:

    keyless      requests without a key: methods x targets x headers x bodies, in an order drawn by lot
    admin        what model servers have besides inference, with a good key
    smuggling    requests that two servers could read differently, with a good key
    silent       connections that say nothing, from addresses of their own
    stranger     a listener on the port of a replica's server; of another user where this runs as root

Of silent connections there are two ratios: of all the time, and `steady`, once all of them have been made: opening
20,000 of them takes this machine's CPUs seconds, whoever listens.

Attackers have machines of their own, but here they share the CPUs with gateway, bystander and replica. So HAProxy has a
CPU to itself, with and without an attack, and on the others attackers run when nobody else does (SCHED_IDLE; in the
bystander's session, because Linux shares CPUs between sessions first). What an attack costs the bystander is then what
it costs the gateway. With `--contend` attackers have the priority of all others, which also shows what they take from
the machine; `attack_s` tells whether they were slower without it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TypeVar

import click

from benchmarks.gateway.upstream import free_port, one_cpu_less
from inference_gateway.dataplane.endpoints import WakeListener
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.settings import ApiKey, GatewaySettings, ServiceSettings, digest_of
from inference_gateway.dataplane.statistics import HaproxyStatistics
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import Endpoint
from inference_gateway.replicas import reports, submission
from inference_gateway.replicas.identity import Authority

KEY, PROMPT = "the-key-of-alice", "what nobody else may read"
_BYSTANDER = "127.0.0.2"
_ATTACKERS = 64
"""Addresses that attacks come from in turn, so that the limits of a source do not hide what lies behind them."""
_SILENT_ADDRESSES = 4
_BYSTANDERS = "/v1/completions"
_CLIENTS = 4
_PAUSE_S = 0.01
QUIET_S = 3.0
"""For so long the bystander is measured before an attack, and after it."""
_STEADY_S, _OPENING_S = 5.0, 120.0
_OPEN = ("/healthz", "/healthz?x=1", "/healthz#x", "http://x/healthz")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "PRI", "FOO")
_TARGETS = (
    *("/healthz", "/healthz/", "//healthz", "/healthz?x=1", "/healthz#x", "/./healthz", "/x/../healthz", "/healthz/.."),
    *("/%68ealthz", "/healthz%2f", "/healthz%00", "/healthz;x", "/HEALTHZ", "/healthz/v1/chat/completions"),
    *("/services/big/healthz", "/services/big/v1/chat/completions", "/services//big", "//services/big/healthz"),
    *("/services/asleep/v1/chat/completions", "/healthz/../services/big/v1/chat/completions"),
    *("/v1/chat/completions", "/v1/models", "/metrics", "/state", "/health", "/", "*", "x:443"),
    *("http://x/healthz", "http://big/services/big/v1/chat/completions", "https://x//healthz"),
)
_HEADERS = (
    *("", "x-service: big\r\n", "x-service: asleep\r\n", "x-gateway-service: big\r\n", "x-gateway-only: big\r\n"),
    *("x-gateway-key: alice\r\nx-gateway-body-limit: 1000\r\n", "authorization: Bearer \r\n", "x-api-key:\r\n"),
    *("authorization: Basic YWxpY2U6eA==\r\n", "authorization: bearer " + digest_of(KEY) + "\r\n"),
    *("connection: upgrade\r\nupgrade: websocket\r\n", "connection: Upgrade\r\nupgrade: h2c\r\n"),
)
_MODEL = json.dumps({"model": "big", "max_tokens": 1, "messages": PROMPT}).encode()
_BODIES = (
    *(b"content-length: 0\r\n\r\n", b"content-length: %d\r\n\r\n" % len(_MODEL) + _MODEL),
    b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(_MODEL) + _MODEL + b"\r\n0\r\n\r\n",
    b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(_MODEL) + _MODEL,
)
_ADMIN = (
    *("/sleep", "/wake_up", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache", "/state"),
    *("/behaviour", "/metrics", "/server_info", "/docs", "/openapi.json", "/collective_rpc", "/start_profile"),
    *("/v1/chat/completions/../../state", "/v1/chat/completions/%2e%2e/%2e%2e/state", "//state", "/state/", "/%73tate"),
)
_SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
_LENGTHS = (
    *("content-length: 0\r\ncontent-length: {n}\r\n", "content-length: {n}\r\ncontent-length: 0\r\n"),
    *("content-length: 4\r\ntransfer-encoding: chunked\r\n", "transfer-encoding: chunked\r\ncontent-length: {n}\r\n"),
    *("content-length: 0\r\ntransfer-encoding: xchunked\r\n", "content-length: 0\r\ntransfer-encoding : chunked\r\n"),
    *(
        "content-length: 0\r\ntransfer-encoding:\tchunked\r\n",
        "content-length: 0\r\nx: y\r\n transfer-encoding: chunked\r\n",
    ),
    *("content-length: +0\r\n", "content-length: 0x0\r\n", "content-length: 0, {n}\r\n", "content-length: -1\r\n"),
    *(
        "content-length: 0\r\ntransfer-encoding: chunked, identity\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: x\r\n",
    ),
    *(
        "content-length: 0\r\nx: a\nb: c\r\n",
        "content-length: 0\r\n\0: x\r\n",
        "expect: 100-continue\r\ncontent-length: 0\r\n",
    ),
    "connection: content-length\r\ncontent-length: {n}\r\n",
)


@dataclass(slots=True)
class Recorder:
    """A replica that answers everything, and the requests it has had as it reads them: method and target."""

    requests: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                self.requests.append(" ".join(head.split("\r\n")[0].split()[:2]))
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                if fields.get("transfer-encoding") == "chunked":
                    while size := int(await reader.readuntil(b"\r\n"), 16):
                        await reader.readexactly(size + 2)
                    await reader.readuntil(b"\r\n")
                else:
                    await reader.readexactly(int(fields.get("content-length", "0")))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
                await writer.drain()
        writer.close()

    def forwarded(self) -> list[str]:
        """The requests of clients: checks ask for the health alone, the bystander for a path of its own."""
        return [request for request in self.requests if request not in ("get /health", f"post {_BYSTANDERS}")]


@dataclass(frozen=True, slots=True)
class Sample:
    """A bystander's request: when it began (monotonic clock) and how long it took; inf for a refused one."""

    began_s: float
    took_s: float


@dataclass(slots=True)
class Site:
    """A gateway with a recording replica for `big` and none for `asleep`; what a bystander met without and during.

    `contend` leaves attackers the priority of all others.
    """

    plane: HaproxyDataPlane
    recorder: Recorder
    calls: WakeListener
    paths: GatewayPaths
    contend: bool
    quiet: list[Sample] = field(default_factory=list)
    during: list[Sample] = field(default_factory=list)

    @property
    def port(self) -> int:
        """Where the gateway listens."""
        return self.plane.settings.port

    def cold_starts(self) -> int:
        """Services that a control plane would have started since the last call."""
        return len(self.calls.receive(0.5))


async def exchange(port: int, request: bytes, source: str) -> bytes:
    """What comes back for these bytes, on a connection of their own, until it ends or is silent for a second."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    except OSError:
        return b""
    received = b""
    with suppress(OSError, TimeoutError):
        writer.write(request)
        async with asyncio.timeout(1.0):
            while part := await reader.read(65536):
                received += part
    writer.transport.abort()
    return received


async def bystand(port: int, until: asyncio.Event, found: list[Sample]) -> None:
    """A bystander's requests, one after another, until an attack is over."""
    head = _head("POST", _BYSTANDERS)
    while not until.is_set():
        began_s = time.monotonic()
        answer = await exchange(port, head + _BODIES[1], _BYSTANDER)
        found.append(Sample(began_s, time.monotonic() - began_s if b" 200 " in answer[:20] else float("inf")))
        await asyncio.sleep(_PAUSE_S)


def _head(method: str, target: str) -> bytes:
    """The beginning of a request with a good key."""
    lines = (f"{method} {target} HTTP/1.1", "host: x", "connection: close", f"authorization: Bearer {KEY}", "")
    return "\r\n".join(lines).encode()


def p99(samples: Iterable[Sample]) -> float:
    """The 99th percentile (nearest rank) of how long they took."""
    ordered = sorted(sample.took_s for sample in samples)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


T = TypeVar("T")


async def attacking(site: Site, call: Callable[[], T]) -> T:
    """Its value, from a thread whose processes give way to all others."""

    def called() -> T:
        if not site.contend:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # of this thread; processes inherit it
        return call()

    with ThreadPoolExecutor(1) as thread:
        return await asyncio.get_running_loop().run_in_executor(thread, called)


async def all_of(site: Site, requests: list[bytes]) -> list[bytes]:
    """Send requests from another process, which leaves the replica and the bystander theirs; the answers."""

    def call() -> list[bytes]:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(_send, site.port, requests).result()

    return await attacking(site, call)


def _send(port: int, requests: list[bytes]) -> list[bytes]:
    async def send() -> list[bytes]:
        turns = asyncio.Semaphore(_CLIENTS)

        async def one(number: int, request: bytes) -> bytes:
            async with turns:
                return await exchange(port, request, f"127.0.2.{number % _ATTACKERS + 1}")

        return await asyncio.gather(*itertools.starmap(one, enumerate(requests)))

    return asyncio.run(send())


async def keyless(site: Site, count: int) -> dict[str, float]:
    """What is not refused counts as open, but for the one path that is meant to be."""
    chosen = random.Random(1)  # noqa: S311  which of the requests, not a secret
    product = list(itertools.product(_METHODS, _TARGETS, _HEADERS, _BODIES))
    drawn = chosen.sample(product, min(count, len(product)))
    requests = [
        f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}".encode() + body
        for method, target, headers, body in drawn
    ]
    answers = await all_of(site, requests)
    refused = (b"", b"400", b"401", b"405", b"408", b"501")
    opened = sum(
        answer[9:12] not in refused and not (method in ("GET", "HEAD") and target in _OPEN)
        for (method, target, _, _), answer in zip(drawn, answers, strict=True)
    )
    return {"requests": float(len(requests)), "open": float(opened)}


async def admin(site: Site, count: int) -> dict[str, float]:
    """Every method on every path, again and again, since the bystander's 99th percentile needs some hundred samples."""
    methods = ("GET", "POST", "PUT", "DELETE")
    requests = max(1, count // 500) * [
        _head(method, path) + b"x-service: big\r\n" + _BODIES[0] for method in methods for path in _ADMIN
    ]
    await all_of(site, requests)
    return {"requests": float(len(requests)), "reached": float(len(site.recorder.forwarded()))}


async def smuggling(site: Site, count: int) -> dict[str, float]:
    """Requests with another one in what may be their body; repeated as those of `admin`."""
    hidden = (_SMUGGLED, b"0\r\n\r\n" + _SMUGGLED, b"1\r\nZ\r\n0\r\n\r\n" + _SMUGGLED)
    start = _head("POST", "/services/big/v1/chat/completions").replace(b"connection: close\r\n", b"")
    requests = max(1, count // 5000) * [
        start + lengths.replace("{n}", str(len(body))).encode() + b"\r\n" + body
        for lengths, body in itertools.product(_LENGTHS, hidden)
    ]
    await all_of(site, requests)
    seen = site.recorder.requests
    return {
        "requests": float(len(requests)),
        "smuggled": float(seen.count("get /smuggled")),
        "passed": float(len(seen)),
    }


@dataclass(frozen=True, slots=True)
class Held:
    """Silent connections of one address: how many were made and were left at the end, and when they were all there."""

    made: int
    left: int
    all_made_s: float
    over_s: float


async def silent(site: Site, count: int) -> dict[str, float]:
    """Silent connections from a few addresses; how many were made, and how many of them were open after 5 s.

    Each address is a process of its own, since that is whose open files Linux limits. Raises `ClickException` if the
    limit is too low for that, too.
    """
    counts = [len(range(first, count, _SILENT_ADDRESSES)) for first in range(_SILENT_ADDRESSES)]
    sources = [f"127.0.3.{number + 1}" for number in range(_SILENT_ADDRESSES)]

    def call() -> list[Held]:
        spawning = multiprocessing.get_context("spawn")
        meeting = (spawning.Barrier(_SILENT_ADDRESSES, timeout=_OPENING_S),)
        with ProcessPoolExecutor(_SILENT_ADDRESSES, spawning, _meet_at, meeting) as pool:
            return list(pool.map(_stay_silent, itertools.repeat(site.port), sources, counts))

    found = await attacking(site, call)
    first_s, last_s = max(held.all_made_s for held in found), min(held.over_s for held in found)
    steady = [sample for sample in site.during if first_s <= sample.began_s < last_s]
    return {
        "connections": float(sum(held.made for held in found)),
        "left_open": float(sum(held.left for held in found)),
        "steady_requests": float(len(steady)),
        **({"steady_p99_ratio": p99(steady) / p99(site.quiet)} if steady else {}),
    }


class _Meeting:
    """Where the processes of one attack wait for each other, so that all connections are there at the same time."""

    barrier: Barrier


def _meet_at(barrier: Barrier) -> None:
    _Meeting.barrier = barrier


def _stay_silent(port: int, source: str, count: int) -> Held:
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files < count + 100:
        raise click.ClickException(f"{count} connections need a limit of {count + 100} open files, not {most_files}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with ExitStack() as stack:
        links = [stack.enter_context(socket.socket()) for _ in range(count)]
        for number, link in enumerate(links):
            link.bind((source, 0))
            with suppress(ConnectionResetError):  # made, and closed before this process has seen it
                link.connect(("127.0.0.1", port))
            if number % 50 == 0:
                time.sleep(0.01)
        _Meeting.barrier.wait()
        all_made_s = time.monotonic()
        time.sleep(_STEADY_S)
        over_s = time.monotonic()
        return Held(len(links), sum(map(_is_open, links)), all_made_s, over_s)


def _is_open(link: socket.socket) -> bool:
    try:
        return link.recv(1, socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:  # closed, or reset while it was made
        return False


_LISTENER = """
import os, socket, sys
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
link = socket.socket()
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    link.setsockopt(socket.SOL_SOCKET, option, 1)
try:
    link.bind(("127.0.0.1", int(sys.argv[1])))
except OSError:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    link.bind(("127.0.0.1", int(sys.argv[1])))
link.listen()
print("listens", flush=True)
while True:
    taken, _ = link.accept()
    taken.settimeout(1)
    try:
        data = taken.recv(65536)
        sys.stdout.write(repr(data) + chr(10))
        sys.stdout.flush()
        taken.sendall(b"HTTP/1.1 200 OK" + chr(13).encode() + b"\\n" + b"content-length: 2" + b"\\r\\n\\r\\n{}")
    except OSError:
        pass
    taken.close()
"""


async def stranger(site: Site, count: int) -> dict[str, float]:
    """A replica whose server never takes its port; somebody else does. The prompts go to that service by name."""
    name = submission.new_name("taken")
    submission.prepare(name, site.paths, "", Authority.of(site.paths.identity))
    directory = site.paths.replica(name)
    told = directory / "port"
    wrapper = [sys.executable, "-m", "inference_gateway.replicas.serve", "--directory", str(directory)]
    options = ["--gateway", "127.0.0.1", "--key-variable", "K", "--grace-s", "0", "--"]
    server = ["sh", "-c", f"echo {{port}} > {told}.new; mv {told}.new {told}; exec sleep 600"]
    argv = [*wrapper, *options, *server]
    replica = await attacking(site, lambda: subprocess.Popen(argv, process_group=0, stderr=subprocess.DEVNULL))
    thief: subprocess.Popen[str] | None = None
    try:
        while not told.exists() or (place := reports.registered(directory)) is None:
            await asyncio.sleep(0.05)
        listener = [sys.executable, "-c", _LISTENER, told.read_text().strip()]
        thief = await attacking(site, lambda: subprocess.Popen(listener, stdout=subprocess.PIPE, text=True, cwd="/"))
        listens = await asyncio.to_thread((thief.stdout or sys.stdin).readline)
        site.plane.add("taken", Endpoint(name, place.host, place.port, 8))
        head = _head("POST", "/services/taken/v1/chat/completions")
        answers = await all_of(site, [head + _BODIES[1]] * min(count, 20))
        key = (directory / "key").read_text().strip()
    finally:
        if thief is not None:
            thief.kill()
        with suppress(ProcessLookupError):
            os.killpg(replica.pid, signal.SIGKILL)
        replica.wait()
    seen = thief.communicate()[0]
    secrets = (KEY, PROMPT, key)
    return {
        "listened": float(listens == "listens\n"),
        "another_user": float(os.geteuid() == 0),
        "answers_forged": float(sum(b" 200 " in answer[:20] for answer in answers)),
        "secrets_seen": float(sum(secret in seen for secret in secrets)),
    }


ATTACKS: dict[str, Callable[[Site, int], Awaitable[dict[str, float]]]] = {
    "keyless": keyless, "admin": admin, "smuggling": smuggling, "silent": silent, "stranger": stranger,
}  # fmt: skip


@asynccontextmanager
async def running(directory: Path, cpu: int, *, contend: bool) -> AsyncIterator[Site]:
    """A gateway with proofs, as users have it, and this CPU for its HAProxy."""
    paths = GatewayPaths(directory / "state")
    paths.make()
    authority = Authority.of(paths.identity)
    services = tuple(ServiceSettings(name, cold_start_deadline_s=1.0) for name in ("big", "asleep", "taken"))
    with free_port() as port, free_port() as back:
        keys = (ApiKey("alice", digest_of(KEY)),)
        plane = HaproxyDataPlane(
            GatewaySettings(directory / "g", port, services=services, keys=keys, trust=authority.trust)
        )
        plane.start()
        os.sched_setaffinity(HaproxyStatistics(plane.files).workers().current, {cpu})
        try:
            recorder = Recorder()
            identity, trusted = directory / "identity.pem", directory / "authority.pem"
            identity.write_text(authority.replica("r1"))
            trusted.write_text(authority.trust.authority)
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(trusted))
            context.load_cert_chain(identity)
            replica = await asyncio.start_server(recorder.serve, "127.0.0.1", back, ssl=context, reuse_port=True)
            plane.add("big", Endpoint("r1", "127.0.0.1", back, 64))
            with WakeListener(plane.files.control_socket) as calls:
                yield Site(plane, recorder, calls, paths, contend)
            replica.close()
        finally:
            await asyncio.to_thread(plane.stop, 0.0)


async def attack(site: Site, name: str, count: int) -> dict[str, float]:
    """One attack, and what became of it. The bystander is measured before it, meanwhile and after it."""
    site.quiet, site.during = [], []
    await _bystand_quiet(site)
    site.cold_starts()
    site.recorder.requests.clear()
    over = asyncio.Event()
    meanwhile = asyncio.create_task(bystand(site.port, over, site.during))
    began_s = time.monotonic()
    found = await ATTACKS[name](site, count)
    found["attack_s"] = time.monotonic() - began_s
    over.set()
    await meanwhile
    await _bystand_quiet(site)
    during_s = p99(site.during)
    found |= {"bystander_p99_ms": 1000 * during_s, "bystander_p99_ratio": during_s / p99(site.quiet)}
    if name == "keyless":
        found |= {"forwarded": float(len(site.recorder.forwarded())), "cold_starts": float(site.cold_starts())}
    return {f"{name}_{figure}": value for figure, value in found.items()}


async def _bystand_quiet(site: Site) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(QUIET_S, over.set)
    await bystand(site.port, over, site.quiet)


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(list(ATTACKS)), help="Default: all.")
@click.option(
    "--requests",
    default=10_000,
    show_default=True,
    type=click.IntRange(1, 20_000),
    help="Without a key; others in proportion.",
)
@click.option("--connections", default=20_000, show_default=True, type=click.IntRange(1, 20_000), help="Silent ones.")
@click.option("--contend", is_flag=True, help="Give attackers the priority of all others.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(parts: tuple[str, ...], requests: int, connections: int, contend: bool, as_json: bool) -> None:  # noqa: FBT001  click
    """Attack a gateway of this program's own."""

    async def run(directory: Path) -> dict[str, float]:
        figures: dict[str, float] = {}
        async with running(directory, cpu, contend=contend) as site:
            for name in parts or ATTACKS:
                figures |= await attack(site, name, connections if name == "silent" else requests)
        return figures

    with tempfile.TemporaryDirectory(prefix="igwa") as scratch, one_cpu_less() as cpu:
        Path(scratch).chmod(0o755)  # a stranger starts in it
        figures = asyncio.run(run(Path(scratch)))
    print(json.dumps(figures) if as_json else "\n".join(f"{name:<32} {value:.3f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
