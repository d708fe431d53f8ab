"""What `sexplsched kernels` prints: profiles, and the clients of kernel managers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from explsched.cli.tables import Column, lines
from kernel_intercept.profile.manager import ManagerStatus
from kernel_intercept.profile.match import demangled, outline
from kernel_intercept.profile.model import KernelProfile

_NS_PER_US, _NS_PER_MS = 1e3, 1e6


class KernelRow(Struct, frozen=True):
    """One kernel. `total_ns` is the measured time of all its samples, what the table is ordered by."""

    kernel: str
    mangled: str
    name_hash: str
    grid: str
    block: str
    shared_bytes: int
    compute_capability: int
    samples: int
    gpu_ns: int
    total_ns: int
    compute_permille: int
    bandwidth_permille: int
    source: str


def rows(profiles: Sequence[KernelProfile]) -> list[KernelRow]:
    """All kernels, most time first."""
    readable = demangled({profile.name for profile in profiles})
    found = [_row(profile, readable[profile.name]) for profile in profiles]
    return sorted(found, key=lambda row: (-row.total_ns, -row.gpu_ns, row.name_hash, row.grid, row.block))


def _row(profile: KernelProfile, readable: str) -> KernelRow:
    key = profile.key
    return KernelRow(
        kernel=outline(readable) if readable else f"{key.name_hash:016x}",  # a name that was cut cannot be demangled
        mangled=profile.name,
        name_hash=f"{key.name_hash:016x}",
        grid=str(key.grid),
        block=str(key.block),
        shared_bytes=key.shared_bytes,
        compute_capability=key.compute_capability,
        samples=profile.samples,
        gpu_ns=profile.gpu_ns,
        total_ns=profile.samples * profile.gpu_ns,
        compute_permille=profile.compute_permille,
        bandwidth_permille=profile.bandwidth_permille,
        source=profile.source,
    )


_KERNEL_COLUMNS = (
    Column("GRID"),
    Column("BLOCK"),
    Column("SHARED", ">"),
    Column("CC", ">"),
    Column("SAMPLES", ">"),
    Column("TIME_US", ">"),
    Column("SM%", ">"),
    Column("MEM%", ">"),
    Column("FROM"),
    Column("KERNEL"),
)


def table(shown: Sequence[KernelRow], width: int | None) -> list[str]:
    """The kernels as lines of at most so many characters; None for any number."""
    return lines(_KERNEL_COLUMNS, (_cells(row) for row in shown), width)


def _cells(row: KernelRow) -> tuple[object, ...]:
    return (
        row.grid,
        row.block,
        row.shared_bytes,
        f"{row.compute_capability // 10}.{row.compute_capability % 10}",
        row.samples,
        f"{row.gpu_ns / _NS_PER_US:.1f}",
        f"{row.compute_permille / 10:.1f}",
        f"{row.bandwidth_permille / 10:.1f}",
        row.source,
        row.kernel,
    )


_FIGURES = ("REQ%", "LIM%", "LAUNCHES", "GPU_MS", "WAITS", "WAITED_MS", "LONGEST", "PASSED")
_CLIENT_COLUMNS = (
    *(Column("GPU", width=12), Column("JOB", ">"), Column("PID", ">"), Column("CLASS")),
    *(Column(title, ">") for title in _FIGURES),
)


def clients(status: ManagerStatus, job: int | None) -> list[str]:
    """The processes that a manager serves, or those of one job, as lines; none if there are none."""
    found = [
        _client(str(gpu.get("uuid", "?")), client)
        for gpu in _objects(status.answer, "gpus")
        for client in _objects(gpu, "clients")
        if job is None or str(client.get("job")) == str(job)
    ]
    if not found:
        return []
    return [f"{status.path}: policy {status.answer.get('policy', '?')}", *lines(_CLIENT_COLUMNS, found, None)]


def _client(uuid: str, client: Mapping[str, Any]) -> tuple[str, ...]:
    def number(name: str, scale: float, places: int) -> str:
        value = client.get(name)
        return f"{value / scale:.{places}f}" if isinstance(value, int | float) else "?"

    return (
        uuid.removeprefix("GPU-"),
        str(client.get("job") or "-"),
        str(client.get("pid", "?")),
        str(client.get("class", "?")),
        number("request_permille", 10, 1),
        number("limit_permille", 10, 1),
        number("launches", 1, 0),
        number("gpu_ns", _NS_PER_MS, 1),
        number("waits", 1, 0),
        number("waited_ns", _NS_PER_MS, 1),
        number("longest_wait_ns", _NS_PER_MS, 2),
        number("passed", 1, 0),
    )


def _objects(parent: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """A list of JSON objects; whatever else is there counts as none."""
    value = parent.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
