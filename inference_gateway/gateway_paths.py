"""The paths of a gateway's files, all below one directory that its nodes share and only its user may enter."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from explsched import log

SLOTS = (1, 2)
"""The first and, where there are two gateways for the same services, the second one."""


@dataclass(frozen=True, slots=True)
class GatewayPaths:
    """The files of a gateway, below `root`. Two gateways for the same services share them, except those of a `slot`."""

    root: Path
    slot: int = 1

    def of(self, slot: int) -> GatewayPaths:
        """The paths of the gateway in this slot, 1 or 2."""
        return GatewayPaths(self.root, slot)

    @property
    def slots(self) -> tuple[GatewayPaths, ...]:
        """The paths of the first and of the second gateway."""
        return tuple(self.of(slot) for slot in SLOTS)

    def _own(self, name: str) -> Path:
        return self.root / (name if self.slot == 1 else f"second-{name}")

    def make(self) -> None:
        """Make the directories. Raises `OSError`."""
        for directory in (self.root, self.root / "replicas", self.root / "endpoints", self.leaving, self.closed_usage):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o700)

    def make_for(self, name: str, job_id: int | None) -> Path:
        """Make the shared directories and a private one for the gateway `name` on this node's disk; returns the latter.

        Raises `OSError`.
        """
        self.make()
        return private(self.private_name(name), job_id)

    def private_name(self, name: str) -> str:
        """The name by which `private` and `left` know the gateway `name`."""
        return name if self.slot == 1 else f"{name}.second"  # no gateway's name has a dot

    @property
    def address(self) -> Path:
        """The URLs of the gateway or of both, one per line. A URL changes when its gateway moves to another node."""
        return self.root / "address"

    @property
    def gateway(self) -> Path:
        """JSON: the job, host and process that serve at this gateway's address."""
        return self._own("gateway.json")

    @property
    def lock(self) -> Path:
        """Held by the control plane."""
        return self.root / "lock"

    @property
    def start_lock(self) -> Path:
        """Held by `gateway up` while it submits the gateway's job, by `gateway down` while it cancels what is left."""
        return self.root / "start.lock"

    @property
    def memory(self) -> Path:
        """JSON: the state that the control plane keeps over restarts."""
        return self.root / "state.json"

    @property
    def plane(self) -> Path:
        """JSON: the actual state of this gateway's HAProxy, where there are two; see `control.planes`."""
        return self._own("plane.json")

    @property
    def orders(self) -> Path:
        """JSON: the wanted state of the HAProxy of the gateway that is not the leader."""
        return self.root / "orders.json"

    @property
    def status(self) -> Path:
        """JSON: the control plane's report, written about once a second."""
        return self.root / "status.json"

    @property
    def events(self) -> Path:
        """The event log, JSON lines."""
        return self.root / "events.jsonl"

    @property
    def access_log(self) -> Path:
        """The access logs of the gateway's jobs that have ended, JSON lines; older ones in `access.jsonl.1`."""
        return self.root / "access.jsonl"

    @property
    def usage(self) -> Path:
        """JSON: today's tokens by key and service, as reported by the replicas."""
        return self.root / "usage.json"

    @property
    def closed_usage(self) -> Path:
        """Directory with the tokens of each day before, in `DAY.json`."""
        return self.root / "usage"

    @property
    def overrides(self) -> Path:
        """JSON: what `gateway scale` has set."""
        return self.root / "overrides.json"

    @property
    def closing(self) -> Path:
        """Present while `gateway down` drains everything."""
        return self.root / "closing"

    def handover(self, job_id: int) -> Path:
        """Present when the data plane of this gateway job is ready to take over. Empty: a full disk has no blocks."""
        return self._own(f"handover.{job_id}")

    @property
    def leaving(self) -> Path:
        """Directory with a JSON file for each gateway job that has handed over and still has requests."""
        return self.root / "leaving"

    @property
    def accepted(self) -> Path:
        """Directory with the services file, the key file and the certificate as last accepted."""
        return self.root / "accepted"

    @property
    def reload(self) -> Path:
        """A request to reload the services file: a unique text."""
        return self._own("reload")

    @property
    def reloaded(self) -> Path:
        """JSON: the answer to the last reload request."""
        return self._own("reloaded.json")

    def replica(self, name: str) -> Path:
        """The directory of a replica: its script, its log, its registration."""
        return self.root / "replicas" / name

    def router_endpoints(self, service: str) -> Path:
        """YAML: the serving replicas of a service, for llm-d's router."""
        return self.root / "endpoints" / f"{service}.yaml"

    @property
    def batches(self) -> Path:
        """Directory of the files and batches of each key; see `batches.store`."""
        return self.root / "batches"

    @property
    def batch_lock(self) -> Path:
        """Held by the worker that processes the batches."""
        return self.root / "batches.lock"

    @property
    def batch_load(self) -> Path:
        """JSON: the requests that this worker has sent."""
        return self.root / "batch-load.json"

    @property
    def identity(self) -> Path:
        """Directory of the gateway's certificate authority; see `replicas.identity`."""
        return self.root / "identity"

    def prune(self, keep: frozenset[str], most: int) -> None:
        """Remove the oldest directories of ended replicas until `most` are left; those named in `keep` are in use.

        Raises `OSError` where one cannot be removed, such as one with files of a container's root, after all others.
        """
        ended = [path for path in (self.root / "replicas").iterdir() if path.name not in keep]
        ended.sort(key=lambda path: path.stat().st_mtime)
        faults: list[OSError] = []
        for path in ended[: max(0, len(ended) - most)]:
            try:
                shutil.rmtree(path)
            except OSError as error:
                faults.append(error)
        if faults:
            raise faults[0]


_LOG = logging.getLogger("explsched.gateway")
_PART_BYTES = 1 << 20
LARGEST_BYTES = 256 << 20
"""An access log that is larger is renamed."""


def private(name: str, job_id: int | None) -> Path:
    """Make a gateway's private directory on this node's disk; a restarted gateway gets the same one.

    Its name can be guessed: where somebody else has taken it the directory gets another one. Raises `OSError`.
    """
    usual = Path(tempfile.gettempdir()) / f"{_private_prefix(name)}{job_id or 'local'}"
    for path in (usual, *sorted(usual.parent.glob(f"{usual.name}.*"))):
        if _is_ours_alone(path):
            return path
    try:
        usual.mkdir(mode=0o700)
    except FileExistsError:
        return Path(tempfile.mkdtemp(prefix=f"{usual.name}.", dir=usual.parent))
    return usual


def _private_prefix(name: str) -> str:
    return f"explsched-gateway-{os.getuid()}-{name}-"


def left(name: str, active: Collection[int]) -> list[Path]:
    """The private directories on this node of a gateway's jobs, all but the `active` ones."""
    prefix = _private_prefix(name)
    found = ((path, path.name.removeprefix(prefix)) for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"))
    jobs = ((path, after.partition(".")[0]) for path, after in found)
    return [path for path, job in jobs if job.isdecimal() and int(job) not in active and _is_ours_alone(path)]


@contextmanager
def supervised(directory: Path) -> Iterator[bool]:
    """Supervise in a private directory for the block; yields False if another process does. Raises `OSError`.

    The kernel tells when a process ends, also where its directory is seen by another name.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(handle)


def _is_ours_alone(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def clean_up(path: Path, access_log: Path, kept_log: Path) -> None:
    """Remove a private directory after appending its access log, if there is one, to the log that is kept."""
    try:
        if access_log.exists():
            _append(access_log, kept_log)
    except OSError as error:
        log.event(_LOG, logging.ERROR, "access log not kept", file=str(kept_log), why=error.strerror or str(error))
    try:
        shutil.rmtree(path)
    except OSError as error:
        log.event(_LOG, logging.ERROR, "not cleaned up", file=str(error.filename or path), why=error.strerror or "")


def _append(source: Path, target: Path) -> None:
    """Append all of a file or nothing, and rename the target to `TARGET.1` once it is large. Raises `OSError`."""
    with source.open("rb") as lines, target.open("ab", buffering=0) as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)  # two gateways may end at the same time
        before = os.fstat(kept.fileno()).st_size
        try:
            while part := lines.read(_PART_BYTES):
                while part:
                    part = part[kept.write(part) :]
        except OSError:
            kept.truncate(before)
            raise
        with suppress(FileNotFoundError):  # the other gateway has renamed it
            if kept.tell() > LARGEST_BYTES and os.path.samestat(os.fstat(kept.fileno()), target.stat()):
                target.replace(f"{target}.1")
