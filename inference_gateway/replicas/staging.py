"""A model on the node's own disk, copied there once for all replicas of the node.

The copy is made beside its place and renamed, so what is there is whole; a lock lets a second replica wait for the
first. A source that has changed since, by names, sizes and times of its files, is copied anew: who has the old files
open keeps them. Standard library only: this runs in jobs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class StagingError(Exception):
    """The model cannot be copied."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A file or directory `source`, and the directory of the node's disk where it is to be."""

    source: Path
    target: Path

    @property
    def place(self) -> Path:
        """Where the copy is."""
        return self.target / self.source.name

    def bring(self) -> Path:
        """Copy it, unless it is there already; returns its place. Raises `StagingError`."""
        try:
            self.target.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.target.stat()
            if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
                raise StagingError(f"{self.target}: others may write there; name a directory that is yours alone")
            with self._locked():
                self._bring()
        except OSError as error:
            raise StagingError(f"{error.filename or self.target}: {error.strerror or error}") from error
        return self.place

    def _bring(self) -> None:
        told, size = _signature(self.source)
        mark = self._beside("staged")
        if mark.exists() and mark.read_text(encoding="ascii") == told and self.place.exists():
            return
        free = shutil.disk_usage(self.target).free
        if size > free:
            raise StagingError(f"{self.target}: {size >> 20} MiB are needed for {self.source}, {free >> 20} are free")
        mark.unlink(missing_ok=True)
        new, old = self._beside("new"), self._beside("old")
        for left in (new, old):  # of one that was killed
            _remove(left)
        if self.source.is_dir():
            shutil.copytree(self.source, new)
        else:
            shutil.copy2(self.source, new)
        if self.place.exists():
            self.place.rename(old)
        new.rename(self.place)
        _remove(old)
        mark.write_text(told, encoding="ascii")

    def _beside(self, what: str) -> Path:
        return self.target / f".{self.source.name}.{what}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait until nobody else on this node copies it."""
        handle = os.open(self._beside("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _signature(source: Path) -> tuple[str, int]:
    """A text that changes with the source, and its bytes."""
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    digest, size = hashlib.sha256(), 0
    for path in files:
        found = path.stat()
        size += found.st_size
        digest.update(f"{path.relative_to(source)}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest(), size


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
