"""What the page asks for, made from a published state: small answers, a screen at a time, however long the queue is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct, to_builtins

from slurm_plugin.audit_file import AuditEntry
from slurm_plugin.observation.gpu_hours import saved_gpu_hours
from slurm_plugin.state.published import Curve, JobRow, PlanLine, State, part, states

MOST_ROWS = 200
_SHOWN = (
    *("jobid", "partition", "name", "user", "state", "gpus", "sweep", "step", "metric", "value", "planned"),
    *("gpu_hours", "sharing", "reason"),
)
_SORTS: Mapping[str, Callable[[JobRow], tuple[bool, str | float]]] = {
    "jobid": lambda row: (False, row.jobid),
    "name": lambda row: (False, row.name),
    "user": lambda row: (False, row.user),
    "gpus": lambda row: (False, -row.gpus),
    "planned": lambda row: (not row.planned, row.planned),
}
_INTERRUPTIONS = frozenset({"preemption", "stop"})


class JobQuery(Struct, frozen=True):
    """Which rows of the queue. `text` is looked for in id, name, user and sweep; `sort` "" is the policy's order."""

    text: str = ""
    state: str = ""
    sort: str = ""
    offset: int = 0
    limit: int = 50

    def holds(self, row: JobRow) -> bool:
        """Whether the row is asked for."""
        if self.state and row.state != self.state:
            return False
        wanted = self.text.lower()
        told = (str(row.jobid), str(row.belongs_to), row.name, row.user, row.sweep)
        return not wanted or any(wanted in value.lower() for value in told)


def summary(state: State) -> dict[str, object]:
    """What stands on top of every view, and the utilisation of the last day."""
    samples, jobs = state.samples, states(state.jobs)
    return {
        "written_s": state.written_s,
        "stale_after_s": state.stale_after_s,
        "policy": state.policy,
        "cluster": state.cluster.partition("/")[0],
        "totals": to_builtins(state.totals),
        "running": jobs["running"],
        "waiting": jobs["waiting"] + jobs["paused"],
        "sweeps": len({(row.sweep, row.user) for row in state.jobs if row.sweep}),
        "samples": [[sample.time_s for sample in samples]]
        + [[getattr(sample, name) for sample in samples] for name in ("gpus", "busy_gpus", "waiting")],
    }


def nodes(state: State) -> dict[str, object]:
    """Nodes with their GPUs and holders, and reservations."""
    held = {job_id for node in state.nodes for job_id, _ in node.jobs}
    names = {str(row.jobid): (row.name[:80], row.user) for row in state.jobs if row.jobid in held}
    return {"nodes": to_builtins(state.nodes), "jobs": names, "leases": to_builtins(state.leases)}


def jobs(state: State, query: JobQuery) -> dict[str, object]:
    """A screen of the queue, and how many rows there are in all."""
    found = [row for row in state.jobs if query.holds(row)]
    if query.sort in _SORTS:
        found.sort(key=_SORTS[query.sort])
    size = min(query.limit, MOST_ROWS)
    offset = _begin(query.offset, size, len(found))
    shown = found[offset : offset + size]
    return {
        "total": len(found),
        "offset": offset,
        "rows": [{name: getattr(row, name) for name in _SHOWN} for row in shown],
    }


def _begin(offset: int, size: int, total: int) -> int:
    """Where a screen begins: that of the last rows, if by now there are too few for the one that is asked for."""
    return offset if offset < total else max(0, total - 1) // size * size


def job(state: State, job_id: int, audited: Sequence[AuditEntry]) -> dict[str, object] | None:
    """Everything about one job; None for one that this state does not have."""
    told = state.explanation(job_id)
    if told is None:
        return None
    row = next((row for row in state.jobs if row.jobid == job_id), None)
    curve = next((curve for curve in part(state.curves, tuple[Curve, ...]) if curve.jobid == job_id), None)
    plan = [line for line in part(state.plan, tuple[PlanLine, ...]) if job_id in line.jobs]
    return {
        "row": to_builtins(row),
        "sentences": told.sentences,
        "curve": to_builtins(curve),
        "plan": to_builtins(plan),
        "audit": to_builtins([entry for entry in audited if entry.job == job_id][-MOST_ROWS:]),
    }


def sweeps(state: State) -> dict[str, object]:
    """Each sweep of each user: how many of its jobs run, wait or have ended, the best value, GPU-hours."""
    rows: defaultdict[tuple[str, str], list[JobRow]] = defaultdict(list)
    for row in state.jobs:
        if row.sweep:
            rows[row.sweep, row.user].append(row)
    curves: defaultdict[tuple[str, str], list[Curve]] = defaultdict(list)
    for curve in part(state.curves, tuple[Curve, ...]):
        if curve.sweep:
            curves[curve.sweep, curve.user].append(curve)
    found = [
        {
            "sweep": name,
            "user": user,
            "metric": next((curve.metric for curve in curves[name, user]), ""),
            "best": _best(curves[name, user]),
            **{one: jobs[one] for one in ("running", "waiting", "paused")},
            "ended": sum(curve.is_over for curve in curves[name, user]),
            "gpu_hours": _gpu_hours(rows[name, user], curves[name, user]),
        }
        for name, user in sorted({*rows, *curves})
        for jobs in (states(rows[name, user]),)
    ]
    return {"total": len(found), "sweeps": found[: 5 * MOST_ROWS]}


def sweep(state: State, name: str, user: str, audited: Sequence[AuditEntry]) -> dict[str, object] | None:
    """The trainings of a sweep that have reported, best first, why some were paused or stopped, and its jobs.

    None for one of which this state has neither jobs nor curves.
    """
    rows = {row.jobid: row for row in state.jobs if row.sweep == name and (not user or row.user == user)}
    curves = [
        curve
        for curve in part(state.curves, tuple[Curve, ...])
        if curve.sweep == name and (not user or curve.user == user)
    ]
    if not rows and not curves:
        return None
    curves.sort(key=lambda curve: curve.rank)
    why = {entry.job: entry for entry in audited if entry.rule in _INTERRUPTIONS and not entry.refused and entry.reason}
    trainings = [_training(curve, rows.get(curve.jobid), why.get(curve.jobid)) for curve in curves]
    reported = {curve.jobid for curve in curves}
    silent = [row for row in rows.values() if row.jobid not in reported]
    jobs = states(rows.values())
    stopped = [one.curve for one in trainings if one.state == "stopped"]
    usual_s = median([one.curve.run_s for one in trainings if one.state == "done"] or [0.0])
    return {
        "best": _best(curves),
        "running": jobs["running"],
        "waiting": jobs["waiting"],
        "stopped": len(stopped),
        "paused": jobs["paused"],
        "gpu_hours": _gpu_hours(rows.values(), curves),
        "saved_gpu_hours": sum(saved_gpu_hours(one.gpus, one.run_s, one.whole_s, usual_s) for one in stopped),
        "trainings": to_builtins(trainings[:MOST_ROWS]),
        "total": len(trainings),
        "silent": [{field: getattr(row, field) for field in _SHOWN} for row in silent[:MOST_ROWS]],
        "silent_total": len(silent),
    }


class _Training(Struct, frozen=True):
    """A training that has reported; `state` is as `sexplsched sweep show` has it, `reason` says why it is so."""

    curve: Curve
    state: str
    reason: str


def _training(curve: Curve, row: JobRow | None, why: AuditEntry | None) -> _Training:
    state, reason = _state(curve, row, why)
    return _Training(curve, state, "; ".join(filter(None, ("diverged" * curve.diverged, reason))))


def _state(curve: Curve, row: JobRow | None, why: AuditEntry | None) -> tuple[str, str]:
    """The state of a training, and why it is so."""
    if row is not None:
        (state,) = states([row])
        return state, "" if state == "running" else (why.reason if why else "") or row.reason
    if why is not None and why.rule == "stop":
        return "stopped", why.reason
    return ("done", "") if curve.state == "COMPLETED" else ("ended", curve.failure)


def _gpu_hours(rows: Iterable[JobRow], curves: Iterable[Curve]) -> float:
    return sum(row.gpu_hours for row in rows) + sum(curve.gpu_hours for curve in curves if curve.is_over)


def _best(curves: Sequence[Curve]) -> float | None:
    aims = {(curve.metric, curve.direction) for curve in curves}
    if len(aims) != 1:  # no training, or trainings that aim at different things
        return None
    first = min(curves, key=lambda curve: curve.rank)
    return None if first.diverged else first.best


def plan(state: State) -> dict[str, object]:
    """What the last pass planned."""
    lines = part(state.plan, tuple[PlanLine, ...])
    return {"total": len(lines), "lines": to_builtins(lines[:MOST_ROWS])}


def audit(audited: Sequence[AuditEntry], text: str, offset: int) -> dict[str, object]:
    """The latest changes first; `text` is looked for in job, user, field and rule."""
    wanted = text.lower()
    found = [
        entry
        for entry in audited
        if not wanted or wanted in f"{entry.job} {entry.user} {entry.field} {entry.rule}".lower()
    ]
    latest, begin = found[::-1], _begin(offset, MOST_ROWS, len(found))
    return {"total": len(found), "offset": begin, "entries": to_builtins(latest[begin : begin + MOST_ROWS])}
