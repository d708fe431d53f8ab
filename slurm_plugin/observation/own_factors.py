"""Which part of a job's site factor is ours.

Slurm keeps one number per job, and a site's job_submit plugin, site_factor plugin or admin may have set it. What is
not ours counts as a part of Slurm's own priority: it is kept, and ours is added to it. So what the daemon writes is
noted in a file. Without the file (the first start, or a disk that was lost) everything that is found counts as somebody
else's: in scope `user` and `account` the daemon's former work only exchanged places, so that is harmless.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from explsched.atomic_file import atomic_write
from explsched.log import event
from slurm_plugin.client.changes import Change, SetSiteFactor
from slurm_plugin.client.records import SlurmJob

_LOG = logging.getLogger("explsched.own_factors")
_KEPT = 3
"""Writes that are remembered: slurmctld may lose its last seconds, and an older one is back then."""


class _Entry(Struct, frozen=True, array_like=True):
    """Somebody else's part, and the sums that we have written, the newest last."""

    others: int
    written: tuple[int, ...] = ()


class OwnFactors:
    """The notes on one cluster. A file that cannot be written keeps the daemon from nothing: that is logged once."""

    def __init__(self, path: Path, entries: Mapping[int, _Entry] | None) -> None:
        self.path = path
        self._entries = dict(entries or {})
        self._is_known = entries is not None
        self._is_writable = True

    @classmethod
    def of_daemon(cls, path: Path) -> Self:
        """The notes of an earlier daemon; none, and so everything is somebody else's, if there is no file."""
        return cls(path, _read(path) or {})

    @classmethod
    def of_visitor(cls, path: Path) -> Self:
        """For commands that only look, perhaps on a host without the file: all is ours then."""
        return cls(path, _read(path))

    def others(self, jobs: Iterable[SlurmJob]) -> dict[int, int]:
        """Somebody else's part of each site factor that has one."""
        found: dict[int, int] = {}
        for job in jobs if self._is_known else ():
            part = self._others_part(job)
            if part:
                found[job.job_id] = part
        return found

    def note(self, changes: Iterable[Change], jobs: Mapping[int, SlurmJob]) -> None:
        """Write down what is about to be written to Slurm, and forget jobs that are gone."""
        entries = {job_id: entry for job_id, entry in self._entries.items() if job_id in jobs}
        for change in changes:
            if isinstance(change, SetSiteFactor) and change.job_id in jobs:
                job = jobs[change.job_id]
                others = self._others_part(job)
                known = self._entry(job)
                written = known.written if known is not None and known.others == others else ()
                latest = (*(one for one in written if one != change.site_factor), change.site_factor)
                entries[job.job_id] = _Entry(others, latest[-_KEPT:])
        if entries != self._entries:
            self._entries = entries
            self._save()

    def _others_part(self, job: SlurmJob) -> int:
        if not job.site_factor:
            return 0
        entry = self._entry(job)
        return entry.others if entry is not None and job.site_factor in entry.written else job.site_factor

    def _entry(self, job: SlurmJob) -> _Entry | None:
        """A task that Slurm has split off its array has the array's site factor."""
        return self._entries.get(job.job_id) or self._entries.get(job.array_job_id or job.job_id)

    def _save(self) -> None:
        try:
            atomic_write(self.path, lambda file: file.write(msgspec.json.encode(self._entries)))
            self.path.chmod(0o644)  # commands of any user read it
        except OSError as error:
            if self._is_writable:
                why = f"{self.path}: {error.strerror}"
                event(_LOG, logging.WARNING, "own site factors not noted; a restarted daemon will keep them", why=why)
            self._is_writable = False
        else:
            self._is_writable = True


def _read(path: Path) -> dict[int, _Entry] | None:
    """None where there is no file that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[int, _Entry])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        event(_LOG, logging.WARNING, "notes of own site factors ignored", why=f"{path}: {error}")
        return None
