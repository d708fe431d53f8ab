"""A job's preemptions and their cost, as one entry in its Slurm AdminComment. Pure.

Slurm is the database. Every Slurm keeps the AdminComment through requeues and restarts of its daemons. Only admins
can write it, so a job's owner cannot forge it; everybody who sees the job can read it; and slurmdbd keeps it after the
job's end (`sacct -o AdminComment`).

The entry is `explsched-preemption:` and a URL-encoded query: `since` is the job's first submission (Slurm resets it for
a requeued job), `n` and `lost` are totals, and each `p` is a recent preemption as `run,time,gpus,lost,reason`.
Each `for` is `run,job`: the job that needed the GPUs, for preemptions whose reasons are kept. `wait` is
`run,earlier,last`: seconds in the queue before the preempted runs earlier than this one, and before this one. Entries
of others, such as `JS1:` of jobstats, are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import shorten
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct
from msgspec.structs import replace

from explsched.errors import ExplschedError

PREFIX = "explsched-preemption:"
MOST_BYTES = 900
"""Longest word that is written. Slurm refuses comments of more than 1024 bytes."""

_WITH_REASON = 3
_REASON_CHARACTERS = 120


class RecordError(ExplschedError):
    """Our entry in the AdminComment is invalid."""


class Interruption(Struct, frozen=True):
    """One preemption.

    `run` is the preempted run, counted from 0. `lost_gpu_s` is its work since its last reported checkpoint, in
    GPU-seconds. `beneficiary` is the job that needed the GPUs, None if it is unknown or the job itself gained.
    """

    run: int
    time_s: float
    gpus: int
    lost_gpu_s: float
    reason: str = ""
    beneficiary: int | None = None


class PreemptionRecord(Struct, frozen=True):
    """A job's preemptions.

    `older` and `older_lost_gpu_s` count those that are no longer listed in `latest` (oldest first). `others` are the
    entries of others in the AdminComment, which are kept. `earlier_wait_s` is the time in the queue before preempted
    runs, `last_wait_s` that before the current run, as its observer knows it.
    """

    submitted_s: float
    latest: tuple[Interruption, ...] = ()
    older: int = 0
    older_lost_gpu_s: float = 0.0
    others: str = ""
    earlier_wait_s: float = 0.0
    last_wait_s: float = 0.0

    @property
    def count(self) -> int:
        """Total number of preemptions."""
        return self.older + len(self.latest)

    @property
    def lost_gpu_s(self) -> float:
        """Total work lost, in GPU-seconds."""
        return self.older_lost_gpu_s + sum(one.lost_gpu_s for one in self.latest)

    def since(self, time_s: float) -> int:
        """The number of listed preemptions after a given time."""
        return sum(one.time_s > time_s for one in self.latest)

    def of_run(self, run: int) -> Interruption | None:
        """The listed preemption that ended a run, counted from 0; None if something else did."""
        return next((one for one in self.latest if one.run == run), None)

    def plus(self, new: Interruption) -> PreemptionRecord:
        """The record with one more preemption. A second one of the same run replaces the first."""
        kept = tuple(one for one in self.latest if one.run != new.run)
        return replace(self, latest=(*kept, new))

    def text(self) -> str:
        """The AdminComment. Old preemptions lose their reasons first; then only their totals are kept."""
        record = replace(
            self,
            latest=(
                *(replace(one, reason="", beneficiary=None) for one in self.latest[:-_WITH_REASON]),
                *(replace(one, reason=_fitting(one.reason)) for one in self.latest[-_WITH_REASON:]),
            ),
        )
        while len(word := record._word()) > MOST_BYTES and record.latest:
            oldest, *rest = record.latest
            record = replace(
                record,
                latest=tuple(rest),
                older=record.older + 1,
                older_lost_gpu_s=record.older_lost_gpu_s + oldest.lost_gpu_s,
            )
        return f"{self.others} {word}".strip()

    def _word(self) -> str:
        pairs = [("since", f"{self.submitted_s:.0f}"), ("n", str(self.older)), ("lost", f"{self.older_lost_gpu_s:.0f}")]
        pairs += [
            ("p", f"{one.run},{one.time_s:.0f},{one.gpus},{one.lost_gpu_s:.0f},{one.reason}") for one in self.latest
        ]
        if self.latest and (self.earlier_wait_s or self.last_wait_s):
            pairs.append(("wait", f"{self.latest[-1].run},{self.earlier_wait_s:.0f},{self.last_wait_s:.0f}"))
        pairs += [("for", f"{one.run},{one.beneficiary}") for one in self.latest if one.beneficiary is not None]
        return PREFIX + urlencode(pairs)


def _fitting(reason: str) -> str:
    """The reason, or as many of its first words as there is room for."""
    return reason if len(reason) <= _REASON_CHARACTERS else shorten(reason, _REASON_CHARACTERS, placeholder=" ...")


def read(admin_comment: str, submit_s: float, restarts: int) -> PreemptionRecord:
    """The record in the AdminComment of a job that was submitted at `submit_s` and requeued `restarts` times.

    A preemption is recorded before the requeue; one whose run has not ended, because Slurm refused, does not count.
    Raises `RecordError`.
    """
    ours = [word for word in admin_comment.split() if word.startswith(PREFIX)]
    record = PreemptionRecord(submit_s, others=without_words(admin_comment, PREFIX))
    if not ours:
        return record
    try:
        pairs = parse_qsl(ours[-1].partition(":")[2], keep_blank_values=True, strict_parsing=True)
        values = dict(pairs)
        served = dict(_beneficiary(value) for key, value in pairs if key == "for")
        run, earlier_s, last_s = map(int, values.get("wait", "0,0,0").split(","))
        listed = [_interruption(value, served) for key, value in pairs if key == "p"]
        return replace(
            record,
            submitted_s=min(submit_s, float(int(values["since"]))),
            latest=tuple(one for one in listed if one.run < restarts),
            older=int(values["n"]),
            older_lost_gpu_s=float(int(values["lost"])),
            earlier_wait_s=float(earlier_s + (last_s if run < restarts else 0)),
        )
    except (ValueError, KeyError) as error:
        raise RecordError(f"AdminComment {ours[-1]!r} is not a record of preemptions: {error!r}") from error


def without_words(admin_comment: str, *prefixes: str) -> str:
    """An AdminComment without the words that begin so; what others wrote stays as it is, blanks and line breaks too."""
    ours = "|".join(map(re.escape, prefixes))
    return re.sub(rf"(?:^|\s)(?:{ours})\S*", "", admin_comment).strip()


def _interruption(text: str, served: Mapping[int, int]) -> Interruption:
    run, time_s, gpus, lost_gpu_s, reason = text.split(",", 4)
    gained = served.get(int(run))
    return Interruption(int(run), float(int(time_s)), int(gpus), float(int(lost_gpu_s)), reason, gained)


def _beneficiary(text: str) -> tuple[int, int]:
    run, job_id = text.split(",")
    return int(run), int(job_id)
