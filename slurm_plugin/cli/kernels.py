"""`sexplsched kernels`: what CUDA kernels cost, and the clients of kernel managers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, to_builtins

from explsched.cli import Commands, examples, json_option
from explsched.tables import Column, lines, room
from kernel_intercept.profile import ncu, store
from kernel_intercept.profile.manager import ManagerStatus, ask, sockets
from kernel_intercept.profile.manager import forget as forget_in
from kernel_intercept.profile.match import demangled, outline, profiles_of
from kernel_intercept.profile.store import Fault, KernelKey, KernelProfile, ProfileError, merged
from slurm_plugin.cli.cluster_state import job_number

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


_FIGURES = ("REQ%", "LIM%", "LAUNCHES", "GPU_MS", "WAITS", "WAITED_MS", "LONGEST", "PASSED", "ROUTED")
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
        f"{client.get('routed', '?')}/{client.get('look_ups', '?')}",
    )


def _objects(parent: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """A list of JSON objects; whatever else is there counts as none."""
    value = parent.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


_EXAMPLES = """\b
examples:
  sexplsched kernels
  sexplsched kernels measure -- python train.py
  sexplsched kernels import ncu.csv --dry-run
"""
_FAULTS_SHOWN = 10

_profiles = click.option(
    "--profiles",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=store.default_path,
    show_default="~/.cache/explsched/kernels-v1.tsv",
    help="Profile file.",
)
_dry_run = click.option("-n", "--dry-run", is_flag=True, help="Dry run: show changes only.")


_HELP = """Show what CUDA kernels cost, and which jobs share GPUs.

Kernels are listed by total time, with the processes that share GPUs on this machine.

Kernel managers are found where sxrun starts them, and at EXPLSCHED_KM_SOCKET. For a job on another node:

\b
srun --jobid=42 --overlap sexplsched kernels --job 42

SM% and MEM% are the shares of the SMs' throughput and of the memory bandwidth that a kernel uses when it runs alone.
FROM is their source: ncu and nvml are measured, timing is an estimate from the occupancy.
"""
_MEASURE_HELP = """Profile COMMAND's kernels with Nsight Compute (ncu).

Imports three metrics per launch: duration, and shares of the SMs' throughput and of the memory bandwidth. ncu must be
on PATH and needs permission to read the GPU's counters (NVIDIA's ERR_NVGPUCTRPERM). The command must run alone on its
GPU; it is slow until --launches are measured.
"""
_IMPORT_HELP = """Import measurements of Nsight Compute. FILE is the output of:

\b
ncu --csv --page raw --print-kernel-base mangled --print-units base \\
    --set full python train.py > FILE

A kernel is identified by its mangled name. Without --print-kernel-base mangled, names are matched with those of
kernels that have run under sxrun; names without a match are reported.
"""


@click.group(cls=Commands, invoke_without_command=True, help=_HELP, epilog=_EXAMPLES)
@click.option("-j", "--job", type=job_number, metavar="JOBID", help="Only processes of this job.")
@click.option("-s", "--socket", "address", type=click.Path(path_type=Path), help="Socket of the kernel manager.")
@_profiles
@json_option
@click.pass_context
def kernels(ctx: click.Context, job: int | None, address: Path | None, path: Path, as_json: bool) -> None:  # noqa: FBT001
    """Show what CUDA kernels cost, and which jobs share GPUs."""
    if ctx.invoked_subcommand is not None:
        return
    parsed = store.read(path)
    _tell(path, parsed.faults)
    statuses = _statuses(job, address)
    found = rows(parsed.profiles)
    if as_json:
        managers = [{"socket": str(status.path), **status.answer} for status in statuses]
        click.echo(json.dumps({"kernels": [to_builtins(row) for row in found], "managers": managers}, indent=1))
        return
    blocks = [lines for status in statuses if (lines := clients(status, job))]
    if job is not None and not blocks:
        click.echo(f"sexplsched: no manager on this machine serves job {job}; see --help for other nodes", err=True)
    blocks.append(table(found, room()) if found else [f"{path}: no kernels are known yet"])
    click.echo("\n\n".join("\n".join(block) for block in blocks))


@kernels.command("import", help=_IMPORT_HELP, epilog=examples("sexplsched kernels import ncu.csv --dry-run"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--strict", "is_strict", is_flag=True, help="Fail, and change nothing, if any row cannot be used.")
@_dry_run
@_profiles
def import_(file: Path, is_strict: bool, dry_run: bool, path: Path) -> None:  # noqa: FBT001
    """Import measurements of Nsight Compute."""
    try:
        with file.open(newline="", errors="replace") as lines:
            export = ncu.parse(lines)
    except (ProfileError, OSError) as error:
        raise ProfileError(f"{file}: {error}") from error
    _take_over(export, file, path, is_strict=is_strict, dry_run=dry_run)


@kernels.command(
    help=_MEASURE_HELP,
    context_settings={"ignore_unknown_options": True},
    epilog=examples("sexplsched kernels measure -- python train.py"),
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--launches", default=2000, show_default=True, type=click.IntRange(min=1), help="Number of launches to measure."
)
@_dry_run
@_profiles
def measure(command: tuple[str, ...], launches: int, dry_run: bool, path: Path) -> None:  # noqa: FBT001
    """Profile a command with Nsight Compute and import the results."""
    export, status = ncu.measure(command, launches, os.environ)
    _take_over(export, Path("ncu"), path, is_strict=False, dry_run=dry_run)
    if status:
        raise ProfileError(f"{command[0]} ended with status {status}; what was measured until then counts")


@kernels.command(epilog=examples('sexplsched kernels forget "*elementwise*" --dry-run'))
@click.argument("pattern")
@_dry_run
@_profiles
def forget(pattern: str, dry_run: bool, path: Path) -> None:  # noqa: FBT001
    """Forget kernels that match PATTERN, such as '*elementwise*'.

    It is compared with names, readable or mangled, and with hashes.
    Managers that run forget them, too, unless --profiles names another file than theirs.
    """
    before = store.read(path).profiles
    gone = {
        profile.key
        for profile, row in zip(before, _rows_in_order(before), strict=True)
        if any(fnmatchcase(text, pattern) for text in row)
    }
    if not gone:
        raise ProfileError(f"{path}: none of {len(before)} kernels matches {pattern!r}")
    if not dry_run:
        store.update(path, lambda old: [profile for profile in old if profile.key not in gone])
        if path == store.default_path():
            _have_forgotten(gone)
    click.echo(f"{len(gone)} kernels {'would be ' if dry_run else ''}forgotten")


@kernels.command(epilog=examples("sexplsched kernels refine --trace trace.tsv --gpu GPU-5f2c"))
@click.option(
    "--trace",
    "trace_path",
    required=True,
    type=click.Path(path_type=Path),
    help="EXPLSCHED_TRACE of the job that runs.",
)
@click.option("--gpu", "uuid", required=True, metavar="UUID", help="GPU that it runs on, alone; see nvidia-smi -L.")
@click.option(
    "--windows", default=200, show_default=True, type=click.IntRange(min=2), help="Number of measurement windows."
)
@click.option(
    "--window",
    "window_s",
    default=0.5,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Length of a window, s.",
)
@_dry_run
@_profiles
def refine(trace_path: Path, uuid: str, windows: int, window_s: float, dry_run: bool, path: Path) -> None:  # noqa: FBT001
    """Measure shares of kernels with NVML (Hopper or newer).

    The job runs alone on the GPU under `EXPLSCHED_TRACE=FILE sxrun --share best-effort -- ...`. Shares are a
    least-squares fit to the GPU's utilisation in each window; kernels that cannot be told apart keep theirs.
    """
    from kernel_intercept.profile.refine import TraceCounter, open_gpm, record, refined

    with open_gpm(uuid) as source:
        counter = TraceCounter(trace_path, source.compute_capability)
        seen = record(source, counter, time.monotonic_ns, lambda: time.sleep(window_s), windows)
    known = store.read(path).profiles
    found = refined(seen, known)
    if found and not dry_run:
        store.update(path, lambda old: merged(old, found))
    click.echo(f"shares of {len(found)} of {len(known)} kernels {'would be' if dry_run else 'are'} measured")


def _take_over(export: ncu.Export, source: Path, path: Path, *, is_strict: bool, dry_run: bool) -> None:
    imported, faults = profiles_of(export, store.read(path).profiles)
    _tell(source, faults)
    if not imported or (is_strict and faults):
        raise ProfileError(f"{source}: {len(faults)} rows cannot be used, nothing is imported")
    if not dry_run:
        store.update(path, lambda old: merged(old, imported))
    done = "would be imported" if dry_run else "imported"
    click.echo(f"{len(imported)} kernels of {len(export.launches)} launches {done}")


def _statuses(job: int | None, address: Path | None) -> list[ManagerStatus]:
    if address is not None:
        return [ask(address)]  # asked for by name: an error if nobody answers
    found = []
    for path in sockets(job, os.geteuid()):
        try:
            found.append(ask(path))
        except ProfileError as error:  # left behind by a manager that was killed
            click.echo(f"sexplsched: {error}", err=True)
    return found


def _have_forgotten(keys: Iterable[KernelKey]) -> None:
    for path in sockets(None, os.geteuid()):
        try:
            forget_in(path, keys)
        except ProfileError as error:  # left behind by a manager that was killed, or of an older version
            click.echo(f"sexplsched: {error}", err=True)


def _rows_in_order(profiles: Sequence[KernelProfile]) -> list[tuple[str, str, str]]:
    by_key = {(row.name_hash, row.mangled): row.kernel for row in rows(profiles)}
    return [
        (by_key[f"{profile.key.name_hash:016x}", profile.name], profile.name, f"{profile.key.name_hash:016x}")
        for profile in profiles
    ]


def _tell(path: Path, faults: Sequence[Fault]) -> None:
    for fault in faults[:_FAULTS_SHOWN]:
        click.echo(f"sexplsched: {path}: {fault}", err=True)
    if len(faults) > _FAULTS_SHOWN:
        click.echo(f"sexplsched: {path}: and {len(faults) - _FAULTS_SHOWN} more", err=True)
