"""How the writes of a pass reach slurmctld: by one scontrol process, or by our own program for site factors.

scontrol continues after a command that fails, but does not say which one failed. Therefore each group of commands is
followed by a marker, a word that scontrol does not know: it reports it as an error, and all errors between two markers
belong to the group between them.

scontrol sends a request only after the one before is answered. Our program has several under way, and sets the site
factors of a thousand jobs in half the time.
"""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from explsched.errors import SlurmError, SlurmUnreachableError
from slurm_plugin.client import process
from slurm_plugin.client.changes import (
    NOT_KNOWN,
    AttachReservation,
    CancelJob,
    Change,
    ChangeFailure,
    ClearDependency,
    CreateReservation,
    DelayStart,
    DeleteReservation,
    ExtendReservation,
    JobChange,
    NotNow,
    RequeueJob,
    SetAdminComment,
    SetGres,
    SetNodeCount,
    SetSiteFactor,
    SignalJob,
    StartAtOnce,
    TargetJob,
    Unanswered,
)
from slurm_plugin.client.notation import clock

_SAFE = re.compile(r"[A-Za-z0-9_.@-]+")
"""Texts that are safe in a scontrol command: without blanks, quotes, newlines, commas and '='."""

_GRES = re.compile(r"[A-Za-z0-9_.:-]+")
_SAFE_NOTE = re.compile(r"[A-Za-z0-9_.:=&@%+,/-]*")

_SITE_FACTORS_PER_MARK = 50

_DATABASE_AWAITED = "the DB index is being set"

_OF_TASKS = re.compile(r"(\d+)_[^:\s]+: (.*)")
_TAKEN, _ENDED = "No error", "Job has already finished"
"""What scontrol prints of each task of an array if Slurm has not answered the same for all of them."""

_NO_NAMES: Mapping[int, str] = MappingProxyType({})

Group = tuple[Change, ...]
"""Changes that are followed by one marker in scontrol's input."""

Complaint = tuple[Group, str, type[ChangeFailure]]
"""A group that was not carried out as a whole, the message, and whether Slurm refused it or it is not known."""


def groups(changes: Iterable[Change]) -> list[Group]:
    """The changes in order, in groups that each get a marker: site factors together, any other change alone.

    A marker takes scontrol as long as a command, so a thousand site factors must not have a thousand markers. Which
    site factor of a group was refused is found by writing the group again (`single`); other changes are not repeatable.
    """
    found: list[Group] = []
    for alike, run in itertools.groupby(changes, lambda change: isinstance(change, SetSiteFactor)):
        members, size = tuple(run), _SITE_FACTORS_PER_MARK if alike else 1
        found += [members[i : i + size] for i in range(0, len(members), size)]
    return found


def single(changes: Iterable[Change]) -> list[Group]:
    """One group for each change."""
    return [(change,) for change in changes]


def text(groups: Sequence[Group], mark: str, names: Mapping[int, str] = _NO_NAMES) -> str:
    """Standard input for scontrol. Raises `SlurmError` for names that scontrol could misread."""
    lines = []
    for i, group in enumerate(groups):
        lines += [command(change, names) for change in group]
        lines.append(f"{mark}-{i}")
    return "\n".join(lines) + "\n"


def complaints(groups: Sequence[Group], stderr: str, mark: str) -> tuple[Complaint, ...]:
    """The groups for which scontrol printed an error, with its message, and those of which it did not come to the end.

    It may have been killed in the midst of them; a change that it was not given is not one that Slurm refuses. But in
    a group of which it has told that a record is awaited, that is what took the time, and writing it again finds whose.
    """
    found: list[Complaint] = []
    rest = stderr
    for i, group in enumerate(groups):
        words, reached, after = rest.partition(f"invalid keyword: {mark}-{i}\n")
        if not reached:
            if _DATABASE_AWAITED in words:
                found.append((group, words.strip(), NotNow))
            else:
                words = words.strip() or "scontrol ended before it came to this"
                found.append((group, f"{NOT_KNOWN}{words}", Unanswered))
            rest = ""
            continue
        rest = after
        if words := _refused_words(words):
            found.append((group, words, kind_of_refusal(words)))
    return tuple(found)


def _refused_words(words: str) -> str:
    """These words of scontrol without those of arrays for which Slurm took the change: some tasks had ended before."""
    lines = [(line, _OF_TASKS.fullmatch(line)) for line in words.strip().splitlines()]
    taken = {tasks[1] for _, tasks in lines if tasks is not None and tasks[2] == _TAKEN}
    needless = (_TAKEN, _ENDED)
    return "\n".join(
        line for line, tasks in lines if tasks is None or tasks[1] not in taken or tasks[2] not in needless
    )


def kind_of_refusal(words: str) -> type[ChangeFailure]:
    """What a refusal with these words is."""
    return NotNow if _DATABASE_AWAITED in words else ChangeFailure


def command(change: Change, names: Mapping[int, str] = _NO_NAMES, spelled: Callable[[float], str] | None = None) -> str:
    """One line of scontrol for one change. `names` has names of jobs whose id alone would mean more (an array's).

    `spelled` writes times; None for `moment`.
    """
    spelled = spelled or moment
    job = names.get(change.job_id, str(int(change.job_id))) if isinstance(change, JobChange) else ""
    match change:
        case SetSiteFactor(_, factor):
            return f"u job={job} sitef={int(factor)}"  # scontrol reads its input byte by byte: short is fast
        case AttachReservation(_, name):
            return f"update JobId={job} ReservationName={_safe(name) if name else ''}"
        case RequeueJob(_):
            return f"requeue Incomplete {job}"
        case StartAtOnce(_):
            return f"update JobId={job} StartTime=now"
        case DelayStart(_, until_s):
            return f"update JobId={job} StartTime={spelled(until_s)}"
        case SetGres(_, gres):
            return f"update JobId={job} Gres={','.join(_safe(part, _GRES) for part in gres.split(','))}"
        case SetNodeCount(_, nodes, tasks, cpus):
            # A range, or the old count stays the largest; all in one, or Slurm checks the nodes against the old tasks.
            return f"update JobId={job} NumNodes={int(nodes)}-{int(nodes)} NumTasks={int(tasks)} NumCPUs={int(cpus)}"
        case ClearDependency(_):
            return f"update JobId={job} Dependency="
        case TargetJob(_, nodes, note):
            return f"update JobId={job} ReqNodeList={_list(nodes)} AdminComment={_note(note)}"
        case SetAdminComment(_, note):
            return f"update JobId={job} AdminComment={_note(note)}"
        case DeleteReservation(name):
            return f"delete ReservationName={_safe(name)}"
        case ExtendReservation(name, end_s):
            return f"update ReservationName={_safe(name)} EndTime={spelled(end_s)}"
        case CreateReservation(name, start_s, minutes, nodes, users, partition):
            return (
                f"create reservation ReservationName={_safe(name)} StartTime={spelled(start_s)} "
                f"Duration={int(minutes)} Nodes={_list(nodes)} Users={_list(users)} "
                f"PartitionName={_safe(partition)} Flags=FLEX,NO_HOLD_JOBS_AFTER,IGNORE_JOBS"
            )
        case _:
            raise SlurmError(f"scontrol has no command for {change}")


def _safe(word: str, accepted: re.Pattern[str] = _SAFE) -> str:
    if not accepted.fullmatch(word):
        raise SlurmError(f"{word!r} cannot be given to scontrol: accepted are {accepted.pattern}")
    return word


def refusal(change: Change) -> ChangeFailure | None:
    """Why this change cannot be written by scontrol, None if it can.

    Called for each change before a batch is written, so that one invalid name does not stop all the others.
    """
    try:
        _ = command(change) if fits_a_line(change) else arguments(change)
    except SlurmError as error:
        return ChangeFailure(change, str(error))
    return None


def shown(change: Change) -> str:
    """The change as a command of Slurm for people to read, with times as Slurm prints them.

    If it cannot be written, because of an invalid name, the reason follows.
    """
    match change:
        case SetSiteFactor(job_id, factor):
            return f"scontrol update JobId={job_id} SiteFactor={factor}"
        case SignalJob(job_id, signal):
            return f"scancel --batch --signal={signal} {job_id}"
        case CancelJob(job_id):
            return f"scancel {job_id}"
        case _ if refused := refusal(change):
            return f"{change} (not given to Slurm: {refused.message})"
        case _ if fits_a_line(change):
            return f"scontrol {command(change, spelled=clock)}"
        case _:
            return shlex.join(["scontrol", *arguments(change)])


def fits_a_line(change: Change) -> bool:
    """Whether the change can be a line of scontrol's input; scontrol does not remove quotes around blanks there."""
    return not isinstance(change, TargetJob | SetAdminComment) or _SAFE_NOTE.fullmatch(change.admin_comment) is not None


def arguments(change: Change, names: Mapping[int, str] = _NO_NAMES) -> list[str]:
    """The arguments of a scontrol process for a change that cannot be a line. Raises `SlurmError`."""
    if not isinstance(change, TargetJob | SetAdminComment):
        raise SlurmError(f"scontrol has no arguments for {change}")
    nodes = [f"ReqNodeList={_list(change.nodes)}"] if isinstance(change, TargetJob) else []
    job = names.get(change.job_id, str(int(change.job_id)))
    return ["update", f"JobId={job}", *nodes, f"AdminComment={change.admin_comment}"]


def _note(text: str) -> str:
    if not _SAFE_NOTE.fullmatch(text):
        raise SlurmError(f"{text!r} cannot be given to scontrol on a line: accepted are {_SAFE_NOTE.pattern}")
    return text


def _list(words: Sequence[str]) -> str:
    return ",".join(_safe(word) for word in words)


def moment(seconds: float) -> str:
    """A time as Slurm's commands read it: since the epoch, since local times are ambiguous when clocks go back."""
    return f"uts{round(seconds)}"


PROGRAM = "explsched-site-factors"
_UNREACHABLE = 1


def find(release: str, timeout_s: float, environment: Mapping[str, str]) -> str | None:
    """The path of the program if it is built for this release (such as `22.05`), as libslurm requires; else None."""
    import shutil  # brings the compression libraries, which commands that only read do not need

    beside = str(Path(sys.executable).parent)  # where pip puts it, whether or not that is on PATH
    for places in (beside, environment.get("PATH", "")):
        path = shutil.which(PROGRAM, path=places)
        if path is not None:
            answer = process.run([path, "--version"], timeout_s, environment)
            if answer.returncode == 0 and answer.out.strip() == release:
                return path
    return None


def write(
    program: str, changes: Sequence[SetSiteFactor], timeout_s: float, environment: Mapping[str, str]
) -> tuple[ChangeFailure, ...]:
    """Set the site factors; returns those that Slurm refused. Raises `SlurmUnreachableError` if it does not answer."""
    lines = "".join(f"{change.job_id} {change.site_factor}\n" for change in changes)
    try:
        answer = process.run([program], timeout_s, environment, stdin=lines)
    except process.TimedOutError as error:  # Slurm may have taken some changes slowly, and said so
        awaited = {job_id: why for job_id, why in _refusals(error.out).items() if _DATABASE_AWAITED in why}
        if not awaited:
            raise
        others = (change for change in changes if str(change.job_id) not in awaited)
        return (*_refused(changes, awaited), *(Unanswered(change, f"{NOT_KNOWN}{error}") for change in others))
    refusals = _refusals(answer.out)
    if answer.returncode == _UNREACHABLE:
        raise SlurmUnreachableError(f"{PROGRAM}: {next(iter(refusals.values()), answer.err.strip())}")
    if answer.returncode != 0:  # it was interrupted: the result of each change is unknown
        why = answer.err.strip() or f"{PROGRAM} ended with status {answer.returncode}"
        return tuple(ChangeFailure(change, why) for change in changes)
    return _refused(changes, refusals)


def _refusals(out: str) -> Mapping[str, str]:
    return {job_id: why for job_id, _, why in (line.partition(" ") for line in out.splitlines())}


def _refused(changes: Iterable[SetSiteFactor], refusals: Mapping[str, str]) -> tuple[ChangeFailure, ...]:
    found = ((change, refusals[str(change.job_id)]) for change in changes if str(change.job_id) in refusals)
    return tuple(kind_of_refusal(why)(change, why) for change, why in found)
