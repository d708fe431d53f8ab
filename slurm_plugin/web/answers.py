"""What the page asks for, made from a published state: small answers, a screen at a time, however long the queue is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, to_builtins

from slurm_plugin.audit.entries import AuditEntry
from slurm_plugin.state.published import Curve, JobRow, PlanLine, State, part

MOST_ROWS = 200
_SHOWN = (
    "jobid",
    "partition",
    "name",
    "user",
    "state",
    "gpus",
    "sweep",
    "step",
    "metric",
    "value",
    "planned",
    "reason",
)
_SORTS: Mapping[str, Callable[[JobRow], tuple[bool, str | float]]] = {
    "jobid": lambda row: (False, row.jobid),
    "name": lambda row: (False, row.name),
    "user": lambda row: (False, row.user),
    "gpus": lambda row: (False, -row.gpus),
    "planned": lambda row: (not row.planned, row.planned),
}


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
        return not wanted or any(wanted in value.lower() for value in (str(row.jobid), row.name, row.user, row.sweep))


def summary(state: State, now_s: float) -> dict[str, object]:
    """What stands on top of every view, and the utilisation of the last day."""
    samples = state.samples
    return {
        "written_s": state.written_s,
        "age_s": state.age_s(now_s),
        "is_stale": state.is_stale(now_s),
        "policy": state.policy,
        "cluster": state.cluster.partition("/")[0],
        "totals": to_builtins(state.totals),
        "running": sum(row.state == "RUNNING" for row in state.jobs),
        "waiting": sum(row.state == "PENDING" for row in state.jobs),
        "samples": [[sample.time_s for sample in samples]]
        + [[getattr(sample, name) for sample in samples] for name in ("gpus", "busy_gpus", "waiting")],
    }


def nodes(state: State) -> dict[str, object]:
    """Nodes with their GPUs and holders, and reservations."""
    names = {row.jobid: (row.name[:80], row.user) for row in state.jobs}
    held = {str(job_id): names[job_id] for node in state.nodes for job_id, _ in node.jobs if job_id in names}
    return {"nodes": to_builtins(state.nodes), "jobs": held, "leases": to_builtins(state.leases)}


def jobs(state: State, query: JobQuery) -> dict[str, object]:
    """A screen of the queue, and how many rows there are in all."""
    found = [row for row in state.jobs if query.holds(row)]
    if query.sort in _SORTS:
        found.sort(key=_SORTS[query.sort])
    shown = found[query.offset : query.offset + min(query.limit, MOST_ROWS)]
    return {"total": len(found), "rows": [{name: getattr(row, name) for name in _SHOWN} for row in shown]}


def job(state: State, job_id: int, audited: Iterable[AuditEntry]) -> dict[str, object] | None:
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
    """Each sweep of each user, with how many of its jobs run, wait or have ended, and GPU-hours."""
    members: defaultdict[tuple[str, str], list[JobRow]] = defaultdict(list)
    for row in state.jobs:
        if row.sweep:
            members[row.sweep, row.user].append(row)
    ended: defaultdict[tuple[str, str], int] = defaultdict(int)
    for curve in part(state.curves, tuple[Curve, ...]):
        if curve.state == "ENDED" and curve.sweep:
            ended[curve.sweep, curve.user] += 1
    found = [
        {
            "sweep": name,
            "user": user,
            "running": sum(row.state == "RUNNING" for row in members[name, user]),
            "waiting": sum(row.state == "PENDING" for row in members[name, user]),
            "ended": ended[name, user],
            "gpu_hours": sum(row.gpu_hours for row in members[name, user]),
        }
        for name, user in sorted({*members, *ended})
    ]
    return {"total": len(found), "sweeps": found[: 5 * MOST_ROWS]}


def sweep(state: State, name: str, user: str) -> dict[str, object]:
    """The curves of a sweep, and its jobs."""
    curves = [
        curve
        for curve in part(state.curves, tuple[Curve, ...])
        if curve.sweep == name and (not user or curve.user == user)
    ]
    rows = [row for row in state.jobs if row.sweep == name and (not user or row.user == user)]
    return {"curves": to_builtins(curves[:MOST_ROWS]), "rows": to_builtins(rows[:MOST_ROWS]), "total": len(rows)}


def plan(state: State) -> dict[str, object]:
    """What the last pass planned."""
    lines = part(state.plan, tuple[PlanLine, ...])
    return {"total": len(lines), "lines": to_builtins(lines[:MOST_ROWS])}


def audit(found: Sequence[AuditEntry], offset: int) -> dict[str, object]:
    """The latest changes first."""
    latest = found[::-1]
    return {"total": len(found), "entries": to_builtins(latest[offset : offset + MOST_ROWS])}
