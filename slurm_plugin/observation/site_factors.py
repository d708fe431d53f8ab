"""The daemon's record of site factors: which part of each is ours.

Slurm keeps one number per job, and a site's job_submit plugin, site_factor plugin or admin may have set it as well.
Their part counts as part of Slurm's own priority: it is kept, and ours is added to it. So what the daemon writes is
recorded in a file. Without the file (first start, or a lost disk) all factors found count as set by others. That is
harmless: in scopes `user` and `account` the former daemon had only exchanged positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from msgspec import Struct

from slurm_plugin.client.changes import Change, SetSiteFactor
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.client.wait_reason import WaitReason
from slurm_plugin.observation.saved_state import SavedState

_UNENDED = frozenset({"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING"})
"""Slurm keeps the site factors of jobs in these states, through requeues too."""

_KEPT = 3
"""Number of writes that are kept: a slurmctld that loses its last seconds returns to an older value."""


class _Entry(Struct, frozen=True, array_like=True):
    """The part that others have set, and the sums that we have written, newest last."""

    others: int
    written: tuple[int, ...] = ()


class OwnFactors:
    """Our parts of the site factors on one cluster."""

    def __init__(self, file: SavedState[dict[int, _Entry]], entries: Mapping[int, _Entry] | None) -> None:
        self._file = file
        self._entries = self._saved = dict(entries or {})
        self._is_known = entries is not None
        self._tasks: Mapping[int, Sequence[int]] = {}

    @classmethod
    def of_daemon(cls, path: Path) -> Self:
        """The records of an earlier daemon. Without a file there are none, and all factors count as set by others."""
        file = _notes_of_factors(path)
        return cls(file, file.read() or {})

    @classmethod
    def of_visitor(cls, path: Path) -> Self:
        """For read-only commands, perhaps on a host without the file: then all factors count as ours."""
        file = _notes_of_factors(path)
        return cls(file, file.read())

    @classmethod
    def of_nobody_else(cls, path: Path) -> Self:
        """All factors count as ours, whatever others may have set by the records, which are kept."""
        own = cls.of_daemon(path)
        own._is_known = False
        return own

    @property
    def path(self) -> Path:
        """The file with the records."""
        return self._file.path

    def others(self, jobs: Iterable[SlurmJob]) -> dict[int, int]:
        """The part of each site factor that others have set, where there is one."""
        found: dict[int, int] = {}
        for job in jobs:
            if job.site_factor != 0 and (part := self._others_part(job)):
                found[job.job_id] = part
        return found

    def throttled(self, jobs: Iterable[SlurmJob]) -> dict[int, int]:
        """What we have written last to each array of which no further task may run now; Slurm does not show it.

        As soon as one of its tasks ends, Slurm starts the next one at the priority that the array has.
        """
        found: dict[int, int] = {}
        for job in jobs:
            if job.site_factor is None and job.waits_for is WaitReason.ARRAY_LIMIT:
                entry = next(self._entries_of(job), None)
                if entry is not None and entry.written:
                    found[job.job_id] = entry.written[-1]
        return found

    def unseen(self, jobs: Iterable[SlurmJob]) -> dict[int, int]:
        """The part that others have set of each site factor that Slurm does not show and ours may be in.

        It shows none of a job that runs or may not start yet (held, dependency, begin time), and takes changes to it.
        """
        found: dict[int, int] = {}
        for job in jobs:
            if job.site_factor is None and job.state in _UNENDED:
                entry, theirs = next(self._entries_of(job), None), self._others_part(job)
                is_ours = not self._is_known if entry is None else entry.written[-1:] != (theirs,)
                if is_ours:
                    found[job.job_id] = theirs
        return found

    def take_in(self, jobs: Iterable[SlurmJob]) -> None:
        """Forget jobs that are gone, and give tasks that have left their arrays the arrays' entries.

        `jobs` are all that Slurm lists, whatever their states.
        """
        tasks: defaultdict[int, list[int]] = defaultdict(list)
        entries = {}
        for job in jobs:
            if job.array_job_id is not None and job.array_job_id != job.job_id:
                tasks[job.array_job_id].append(job.job_id)
            entry = next(self._entries_of(job), None)
            if entry is not None:
                entries[job.job_id] = _Entry(job.site_factor or 0) if self._is_replaced(job) else entry
        self._entries, self._tasks = entries, tasks

    def note(self, changes: Iterable[Change], jobs: Mapping[int, SlurmJob]) -> None:
        """Record what is about to be written to Slurm. It writes the site factor of an array to all tasks of it."""
        entries = dict(self._entries)
        for change in changes:
            if isinstance(change, SetSiteFactor) and change.job_id in jobs:
                job = jobs[change.job_id]
                others = self._others_part(job)
                is_array = job.array_task_id is None
                for job_id in (job.job_id, *(self._tasks.get(job.job_id, ()) if is_array else ())):
                    known = entries.get(job_id)
                    written = known.written if known is not None and known.others == others else ()
                    latest = (*(one for one in written if one != change.site_factor), change.site_factor)
                    entries[job_id] = _Entry(others, latest[-_KEPT:])
        self._keep(entries)

    def note_failed(self, changes: Iterable[SetSiteFactor]) -> None:
        """Slurm has refused these, or has not answered: what was written before may still count, and comes last."""
        entries = dict(self._entries)
        for change in changes:
            entry = entries.get(change.job_id)
            if entry is not None and entry.written[-1:] == (change.site_factor,):
                *older, last = entry.written
                entries[change.job_id] = _Entry(entry.others, (*older[:-1], last, *older[-1:]))
        self._keep(entries)

    def _keep(self, entries: dict[int, _Entry]) -> None:
        self._entries = entries
        if entries != self._saved and self._file.write(entries, mode=0o644):  # commands of any user read it
            self._saved = entries

    def _is_replaced(self, job: SlurmJob) -> bool:
        """Whether somebody has set another site factor over ours."""
        return bool(job.site_factor) and all(job.site_factor not in one.written for one in self._entries_of(job))

    def _others_part(self, job: SlurmJob) -> int:
        if not self._is_known or job.site_factor == 0:
            return 0
        if job.site_factor is None:
            return next((entry.others for entry in self._entries_of(job)), 0)
        ours = (entry.others for entry in self._entries_of(job) if job.site_factor in entry.written)
        return next(ours, job.site_factor)

    def _entries_of(self, job: SlurmJob) -> Iterator[_Entry]:
        """Its own entry, and that of its array: a task that Slurm has just split off has the array's site factor."""
        for job_id in (job.job_id, job.array_job_id):
            if job_id is not None and job_id in self._entries:
                yield self._entries[job_id]


def _notes_of_factors(path: Path) -> SavedState[dict[int, _Entry]]:
    return SavedState(path, dict[int, _Entry], "own site factors", "will keep them")
