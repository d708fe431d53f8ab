"""The nodes of a replica: the model, copied to each node's local disk, and the workers of a multi-node server.

A model is copied once for all replicas of a node, below a directory that is named by its source's path: models of
several services may have the same name. It is copied under a temporary name and then renamed, so a copy is always
complete; a lock makes a second replica wait for the first. If the source has changed since (names, sizes or
modification times of its files) it is copied again; processes that have the old files open keep them. Where a node has
no room for both, the outdated copy is removed first.

Slurm starts and ends the nodes of a job together. The first node runs the server that the gateway talks to, and its
wrapper starts the workers on the other nodes with `srun`; when one of them ends, the whole job ends and the gateway
starts another. All get the same rendezvous address, in placeholders of their commands and in the variables that
torchrun and similar launchers read. The other nodes run `python -m inference_gateway.replicas.gang`. Standard library
only: this runs in jobs.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from explsched import interpreter
from explsched.errors import warn


class StagingError(Exception):
    """The model cannot be copied."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A file or directory `source`, and the directory `target` on the node's disk below which it is copied."""

    source: Path
    target: Path

    @property
    def copy(self) -> Path:
        """The path of the copy."""
        return self._directory / self.source.name

    @property
    def _directory(self) -> Path:
        """The directory of the copy, which no other source has."""
        return self.target / hashlib.sha256(os.fsencode(self.source)).hexdigest()[:16]

    def bring(self) -> Path:
        """Copy the source unless an up-to-date copy exists; returns the copy's path. Raises `StagingError`."""
        try:
            self.target.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.target.stat()
            if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
                raise StagingError(f"{self.target}: others may write there; name a directory that is yours alone")
            self._directory.mkdir(mode=0o700, exist_ok=True)
            with self._locked():
                self._bring()
        except OSError as error:
            raise StagingError(f"{error.filename or self.target}: {error.strerror or error}") from error
        return self.copy

    def _bring(self) -> None:
        signature, size = _signature(self.source)
        staged = self._beside("staged")
        if staged.exists() and staged.read_text(encoding="ascii") == signature and self.copy.exists():
            return
        new, old = self._beside("new"), self._beside("old")
        for left in (new, old):  # by a copy that was killed; they take room on the disk
            _remove(left)
        free = shutil.disk_usage(self.target).free
        outdated = _signature(self.copy)[1] if self.copy.exists() else 0
        if free < size <= free + outdated:
            staged.unlink(missing_ok=True)
            _remove(self.copy)
            free = shutil.disk_usage(self.target).free  # no more than before while a server has the files open
        if size > free:
            raise StagingError(f"{self.target}: {size >> 20} MiB are needed for {self.source}, {free >> 20} are free")
        staged.unlink(missing_ok=True)
        try:
            if self.source.is_dir():
                shutil.copytree(self.source, new)
            else:
                shutil.copy2(self.source, new)
        except OSError:  # as where another model took the room meanwhile
            _remove(new)
            raise
        if self.copy.exists():
            self.copy.rename(old)
        new.rename(self.copy)
        _remove(old)
        staged.write_text(signature, encoding="ascii")

    def _beside(self, what: str) -> Path:
        return self._directory / f".{self.source.name}.{what}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold this node's lock on the copy."""
        handle = os.open(self._beside("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _signature(source: Path) -> tuple[str, int]:
    """A digest of the names, sizes and modification times of the source's files, and their total size in bytes."""
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    digest, size = hashlib.sha256(), 0
    for path in files:
        found = path.stat()
        size += found.st_size
        digest.update(f"{path.relative_to(source)}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest(), size


def _remove(path: Path) -> None:
    if path.is_dir():
        _allow_changes(path)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _allow_changes(directory: Path) -> None:
    """Let the owner change a directory and those in it, which as copies of read-only ones are read-only."""
    directory.chmod(directory.stat().st_mode | stat.S_IRWXU)
    for path in directory.iterdir():
        if path.is_dir():
            _allow_changes(path)


@dataclass(frozen=True, slots=True)
class Gang:
    """The nodes of a replica; they rendezvous at a port of the first one, the `leader`."""

    nodes: int
    leader: str
    port: int

    def placeholders(self, rank: int) -> dict[str, str]:
        """The placeholders of the command on the node of this rank (from 0), with their values."""
        values = {"nodes": self.nodes, "rank": rank, "leader": self.leader, "leader_port": self.port}
        return {f"{{{name}}}": str(value) for name, value in values.items()}

    def environment(self, rank: int) -> dict[str, str]:
        """The environment variables of the node of this rank."""
        own = {"NODES": self.nodes, "RANK": rank, "LEADER": self.leader, "LEADER_PORT": self.port}
        common = {"NNODES": self.nodes, "NODE_RANK": rank, "MASTER_ADDR": self.leader, "MASTER_PORT": self.port}
        found = {f"EXPLSCHED_{name}": value for name, value in own.items()}
        found |= {
            name: value for kind in ("", "PET_") for name, value in ((f"{kind}{key}", common[key]) for key in common)
        }
        return {name: str(value) for name, value in found.items()}

    def workers(self, words: Sequence[str], values: Mapping[str, str], stage: Stage | None) -> list[str]:
        """The command that runs `words` on the other nodes. `values` are the placeholders that all nodes share."""
        others = str(self.nodes - 1)
        steps = ["srun", "--relative=1", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1", "--mem=0"]
        cpus = os.environ.get("SLURM_CPUS_PER_TASK", "1")
        own = ["--nodes", str(self.nodes), "--leader", self.leader, "--leader-port", str(self.port)]
        own += [f"--value={name}={value}" for name, value in values.items()]
        own += ["--stage", str(stage.source), str(stage.target)] if stage else []
        module = interpreter.of_module("inference_gateway.replicas.gang", *own, "--", *words)
        return [*steps, f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1", *module]


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The words with placeholders replaced; other braces are left alone."""
    done = list(words)
    for placeholder, value in values.items():
        done = [word.replace(placeholder, value) for word in done]
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy the model to this node if asked to, then become its worker."""
    parser = argparse.ArgumentParser(prog="gang", description=__doc__, allow_abbrev=False)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--leader", required=True)
    parser.add_argument("--leader-port", type=int, required=True)
    parser.add_argument("--value", action="append", default=[], help="a placeholder and its value, PLACEHOLDER=VALUE")
    parser.add_argument("--stage", nargs=2, type=Path, metavar=("SOURCE", "TARGET"))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    gang = Gang(options.nodes, options.leader, options.leader_port)
    rank = int(os.environ["SLURM_PROCID"]) + 1
    values = dict(value.split("=", 1) for value in options.value) | gang.placeholders(rank)
    try:
        if options.stage:
            Stage(*options.stage).bring()
        words = filled(options.command[1:], values)
        os.execvpe(words[0], words, {**os.environ, **gang.environment(rank)})  # noqa: S606  no shell is wanted
    except (StagingError, OSError) as error:
        warn(f"replica, node {rank}", str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
