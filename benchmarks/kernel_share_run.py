"""Runs clients of a virtual GPU as processes: with or without a kernel manager and the interposer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explsched.job_options.table import REQUEST, SHARE

_TITLE = "# explsched kernel profiles 1"
_COLUMNS = "name_hash grid block shared_bytes cc samples gpu_ns compute_permille bandwidth_permille source name"
_GRID, _BLOCK, _COMPUTE_CAPABILITY = "132,1,1", "256,1,1", 90
_START_DELAY_S = 0.6


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the virtual GPU: its running time alone and its shares of the GPU."""

    name: str
    duration_us: int
    compute_permille: int
    bandwidth_permille: int


@dataclass(frozen=True, slots=True)
class Client:
    """A process: the kernels of its requests or steps, and the mean pause between them (0: none)."""

    priority: str
    kernels: str
    pause_ms: float = 0.0
    request_permille: int = 1000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client measured: the latency of each request or step, and its launches."""

    latencies_us: tuple[float, ...]
    launches: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A kernel in the virtual GPU's log, in its nanoseconds."""

    pid: int
    kernel: str
    called_ns: int
    admitted_ns: int
    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Trial:
    """All clients of one run, in their order, what ran on the GPU, and the manager's last status if there was one."""

    clients: tuple[Outcome, ...]
    pids: tuple[int, ...]
    log: tuple[Ended, ...]
    status: Mapping[str, Any] | None


class Bench:
    """The programs of a build directory, and the kernels that the virtual GPU knows."""

    def __init__(self, build: Path, kernels: Sequence[Kernel]) -> None:
        """`build`: a CMake build with -DEXPLSCHED_TESTS=ON."""
        self._client = build / "tests/kernel/share/share_client"
        self._driver = build / "tests/kernel/fakecuda/fakecuda"
        self._interposer = build / "kernel_intercept/interposer/libexplsched_intercept.so"
        self._manager = build / "kernel_intercept/manager/sexplkmd"
        self._kernels = kernels

    def run(self, clients: Sequence[Client], seconds: float, manager: Sequence[str] | None) -> Trial:
        """Run the clients side by side. `manager`: its options; None for no manager and no interposer, as under MPS."""
        with tempfile.TemporaryDirectory(prefix="kernel-share-") as directory:
            home = Path(directory)
            environment = self._environment(home)
            if manager is None:
                return self._trial(home, clients, seconds, environment)
            with self._managed(home, manager) as managed:
                return self._trial(home, clients, seconds, {**environment, **managed}, managed=True)

    def _environment(self, home: Path) -> dict[str, str]:
        table = home / "kernels"
        table.write_text(
            "".join(
                f"{k.name} 32 0 {k.duration_us * 1000} {k.compute_permille} {k.bandwidth_permille}\n"
                for k in self._kernels
            )
        )
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self._driver),
            "FAKECUDA_KERNELS": str(table),
            "FAKECUDA_GPU": str(home / "gpu"),
            "FAKECUDA_LOG": "1",
        }

    def _trial(
        self,
        home: Path,
        clients: Sequence[Client],
        seconds: float,
        environment: dict[str, str],
        *,
        managed: bool = False,
    ) -> Trial:
        start_ns = time.monotonic_ns() + int(_START_DELAY_S * 1e9)
        processes = [
            subprocess.Popen(
                [self._client, client.kernels, str(client.pause_ms), str(start_ns), str(seconds)],
                env={
                    **environment,
                    SHARE.variable: client.priority,
                    REQUEST.variable: f"{client.request_permille / 1000:g}",
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for client in clients
        ]
        time.sleep(_START_DELAY_S + seconds * 0.9)
        status = json.loads(self._status(home)) if managed else None
        outcomes = []
        for process in processes:
            answer = json.loads(process.communicate(timeout=seconds + 60)[0])
            outcomes.append(Outcome(tuple(answer["latencies_us"]), answer["launches"]))
        return Trial(tuple(outcomes), tuple(p.pid for p in processes), _log(home / "gpu.log"), status)

    @contextmanager
    def _managed(self, home: Path, options: Sequence[str]) -> Iterator[dict[str, str]]:
        profiles = home / "profiles.tsv"
        profiles.write_text(self._profiles())
        home.chmod(0o700)
        command: list[str | Path] = [self._manager, "--dir", home, "--profiles", profiles, "--foreground", *options]
        process = subprocess.Popen(command)
        socket = home / "kernel-manager.sock"
        try:
            while not socket.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"{self._manager} ended with {process.returncode}")
                time.sleep(0.01)
            yield {
                "EXPLSCHED_KM_SOCKET": str(socket),
                "LD_PRELOAD": str(self._interposer),
            }
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=10)

    def _status(self, home: Path) -> str:
        command: list[str | Path] = [self._manager, "--dir", home, "--status"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def _profiles(self) -> str:
        lines = [_TITLE, _COLUMNS.replace(" ", "\t")]
        for k in self._kernels:
            cells = (
                f"{_fnv1a(k.name):016x}",
                _GRID,
                _BLOCK,
                0,
                _COMPUTE_CAPABILITY,
                32,
                k.duration_us * 1000,
                k.compute_permille,
                k.bandwidth_permille,
                "ncu",
                k.name,
            )
            lines.append("\t".join(str(cell) for cell in cells))
        return "\n".join(lines) + "\n"


def _fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % (1 << 64)
    return value


def _log(path: Path) -> tuple[Ended, ...]:
    """In the order in which they ended: lines are written by whichever process saw it."""
    rows = (line.split(",") for line in path.read_text().splitlines())
    log = [Ended(int(r[0]), r[1], int(r[10]), int(r[3]), int(r[4]), int(r[5])) for r in rows if r[0].strip().isdigit()]
    return tuple(sorted(log, key=lambda kernel: kernel.ended_ns))
