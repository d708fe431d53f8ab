"""How changes are carried out: by scontrol, scancel, and our own program for site factors where it is installed.

All that scontrol writes in a pass is written by one process, but for comments that cannot stand on a line.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from msgspec import Struct

from explsched.errors import SlurmUnreachableError
from slurm_plugin.client import batch, process
from slurm_plugin.client.changes import (
    NOT_KNOWN,
    CancelJob,
    Change,
    ChangeFailure,
    NotNow,
    SetAdminComment,
    SetSiteFactor,
    SignalJob,
    TargetJob,
    Unanswered,
)

_IN_TRANSITION = "Job is in transitional state"
"""After these words scancel sends its request again some seconds later."""


class Writer(Struct, frozen=True):
    """Carries out changes, each command in at most `timeout_s`.

    `names` are those of tasks of arrays. scancel says these, whatever it is given, and the last task has the id of its
    array, which means all of them.
    """

    timeout_s: float
    environment: Mapping[str, str]
    names: Mapping[int, str]
    threads: ThreadPoolExecutor

    def apply(self, changes: Sequence[Change], program: str | None) -> tuple[ChangeFailure, ...]:
        """Carry out the changes: comments and site factors, scontrol's in order in one process, then signals.

        There is one scancel per kind of signal, one per signal to a task of an array, and one scontrol per comment. A
        change that scontrol cannot be given safely is refused by itself; the others are carried out. `program` is our
        own for site factors.
        """
        failed: list[ChangeFailure] = []
        written: tuple[type[Change], ...] = (SignalJob, CancelJob)
        if program:
            factors = [change for change in changes if isinstance(change, SetSiteFactor)]
            failed += batch.write(program, factors, self.timeout_s, self.environment)
            written = (*written, SetSiteFactor)
        wanted = [change for change in changes if not isinstance(change, written)]
        refused = {i: failure for i, change in enumerate(wanted) if (failure := batch.refusal(change))}
        failed += refused.values()
        steering = [change for i, change in enumerate(wanted) if i not in refused]
        for change in steering:
            if isinstance(change, TargetJob | SetAdminComment) and not batch.fits_a_line(change):
                failed += self._apply_alone(change)
        failed += self._apply_steering([change for change in steering if batch.fits_a_line(change)])
        by_signal: defaultdict[str | None, list[SignalJob | CancelJob]] = defaultdict(list)
        to_tasks: list[SignalJob] = []
        for change in changes:
            if isinstance(change, SignalJob) and change.job_id in self.names:
                to_tasks.append(change)
            elif isinstance(change, SignalJob | CancelJob):
                by_signal[change.signal if isinstance(change, SignalJob) else None].append(change)
        for signal, group in by_signal.items():
            failed += self._unsent(group, self._run(self._scancel(signal, group)))
        # Last, for if one of those gets no answer the pass is given up, and none of these may be sent after that.
        for signalled in [process.beside(self.threads, partial(self._signal_task, change)) for change in to_tasks]:
            failed += signalled.result()
        return tuple(failed)

    def _apply_steering(self, changes: Sequence[Change]) -> Iterator[ChangeFailure]:
        unclear: list[Change] = []
        for group, words, kind in self._scontrol(batch.groups(changes)):
            if len(group) == 1 or kind is Unanswered:
                yield from (kind(change, words) for change in group)
            else:
                unclear += group
        for group, words, kind in self._scontrol(batch.single(unclear)):
            yield kind(group[0], words)

    def _scontrol(self, groups: Sequence[batch.Group]) -> tuple[batch.Complaint, ...]:
        """Give the changes to one scontrol process; returns the groups it complained about, and its words.

        One that runs out of time, for Slurm took some changes slowly, has carried out those that it came to.
        """
        if not groups:
            return ()
        mark = f"explsched-{os.urandom(4).hex()}"
        lines = batch.text(groups, mark, self.names)
        try:
            told = process.run(["scontrol"], self.timeout_s, self.environment, stdin=lines).err
        except process.TimedOutError as error:
            if mark not in error.err and batch.kind_of_refusal(error.err) is not NotNow:
                raise
            told = error.err
        return batch.complaints(groups, told, mark)

    def _apply_alone(self, change: TargetJob | SetAdminComment) -> Iterator[ChangeFailure]:
        # Not through the standard input of scontrol: other people's words in a comment may hold anything.
        answer = self._run(["scontrol", *batch.arguments(change, self.names)])
        if answer.returncode != 0:
            words = (answer.err or answer.out).strip()
            yield batch.kind_of_refusal(words)(change, words)

    def _scancel(self, signal: str | None, group: Sequence[SignalJob | CancelJob]) -> list[str]:
        # --state: for a job that no longer runs, scancel would retry for a minute. --batch: slurmctld answers a --full
        # signal of a batch job with "try again later".
        how = [f"--signal={signal}", "--batch", "--state=RUNNING"] if signal else []
        return ["scancel", "--verbose", *how, *(self._name(change.job_id) for change in group)]

    def _signal_task(self, change: SignalJob) -> Sequence[ChangeFailure]:
        """Signal a task of an array once.

        While others of the array wait, slurmctld signals the task and answers that it is in transition all the same;
        scancel would signal it again and again, for a minute and a half.
        """
        argv = self._scancel(change.signal, [change])
        try:
            answer = process.run_until(_IN_TRANSITION, argv, self.timeout_s, self.environment)
        except SlurmUnreachableError as error:
            return [Unanswered(change, f"{NOT_KNOWN}{error}")]
        return self._unsent([change], answer)

    def _unsent(self, group: Sequence[SignalJob | CancelJob], answer: process.CommandOutput) -> list[ChangeFailure]:
        """What a scancel has not sent, by what it told."""
        failed = []
        for change in group:
            name = self._name(change.job_id)
            complaint = re.search(rf"^.*error.*\b{name}\b.*$", answer.err, re.MULTILINE)
            if complaint:
                failed.append(ChangeFailure(change, complaint[0].removeprefix("scancel: ")))
            elif isinstance(change, SignalJob) and not re.search(
                rf"Signal \d+ to .*job {name}$", answer.err, re.MULTILINE
            ):
                # A job that does not run is left out, and that is said only if no other job of the cluster runs either.
                failed.append(ChangeFailure(change, "scancel did not send it: the job is not running"))
        return failed

    def _name(self, job_id: int) -> str:
        return self.names.get(job_id, str(job_id))

    def _run(self, argv: Sequence[str]) -> process.CommandOutput:
        return process.run(argv, self.timeout_s, self.environment)
