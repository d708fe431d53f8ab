"""From planned groups to changes in Slurm, and from running jobs to their groups. Pure.

A waiting job is never held. It is pinned to its node (ReqNodeList) when Slurm would now start it on the right GPU, and
unpinned when the plan changes or it has not started in time. A group's members are pinned in one batch and come first
in the order, so that Slurm starts them together. Each carries an annotation, since Slurm is the database. A group is
over when one of its jobs has ended or runs on another GPU: the others continue, and are planned anew. Jobs that Slurm
started while a pass wrote another plan's groups on them are groups as they run.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explsched.log import event
from sched_policy.plan import Plan, Score
from slurm_plugin.client.changes import Change, ChangeFailure, SetAdminComment, TargetJob
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.group_annotation import GroupAnnotation, is_pinned, may_be_annotated
from slurm_plugin.observation.observe import Observation
from slurm_plugin.steering.release import Releases, may_be_pinned

PATIENCE_S = 60.0
"""A pinned job that has not started after this time is unpinned: something that is not modelled blocks it."""
PAUSE_S = 600.0
"""Then it is left to Slurm for this time."""

Device = tuple[tuple[str, tuple[int, ...]], ...]
"""(node, GPU indices) of a job."""


class LiveGroup(Struct, frozen=True):
    """A group that was planned, as it is now.

    Attributes:
        number: its number, that of one of its jobs.
        size: the number of jobs it was planned for.
        running: its running jobs, with their GPUs.
        waiting: its waiting jobs.

    """

    number: int
    size: int
    running: tuple[tuple[int, Device], ...]
    waiting: tuple[int, ...]

    @property
    def job_ids(self) -> tuple[int, ...]:
        """All of its jobs that are left."""
        return (*(job_id for job_id, _ in self.running), *self.waiting)

    @property
    def is_complete(self) -> bool:
        """Whether none of its jobs has ended."""
        return len(self.job_ids) == self.size

    @property
    def verified(self) -> bool | None:
        """Whether its running jobs are on the same GPU; None before two of them run, or while Slurm does not tell.

        It does not of a job that has ended since it was asked which jobs run.
        """
        known = {device for _, device in self.running if device}
        if len(known) > 1:
            return False
        all_known = all(device for _, device in self.running)
        return True if len(self.running) > 1 and all_known else None


def live_groups(jobs: Iterable[SlurmJob]) -> tuple[LiveGroup, ...]:
    """The groups in the annotations, in order of their numbers."""
    members: defaultdict[tuple[int, int], list[SlurmJob]] = defaultdict(list)
    for job in jobs:
        note = GroupAnnotation.of(job.admin_comment)
        if note.group is not None and job.state != "COMPLETING":
            members[note.group, note.size].append(job)
    return tuple(_group(*key, tuple(members[key])) for key in sorted(members))


def _group(number: int, size: int, members: tuple[SlurmJob, ...]) -> LiveGroup:
    running = tuple((job.job_id, job.gpu_indices) for job in members if job.state != "PENDING")
    return LiveGroup(number, size, running, tuple(job.job_id for job in members if job.state == "PENDING"))


def withdrawal(jobs: Iterable[SlurmJob]) -> tuple[Change, ...]:
    """Unpin every waiting job that we pinned: for a daemon that stops."""
    waiting = (job for job in jobs if job.state == "PENDING")
    return tuple(
        change for job in waiting for change in _change(job, GroupAnnotation.of(job.admin_comment), GroupAnnotation())
    )


def in_order(plan: Plan, releases: Releases) -> Sequence[Score]:
    """The plan's scores with the released jobs first, and the members of a group that waits behind its first one.

    Slurm gives freed GPUs to the next job in the queue at once, so a group must be together in the queue.
    """
    together = {job_id: group.job_ids for group in plan.groups for job_id in group.job_ids}
    if not together and not releases.order:
        return plan.scores
    scores = {score.job_id: score for score in plan.scores}
    with_groups = (job_id for score in plan.scores for job_id in (score.job_id, *together.get(score.job_id, ())))
    return tuple(scores[job_id] for job_id in dict.fromkeys((*releases.order, *with_groups)))


def group_changes(plan: Plan, releases: Releases, seen: Observation) -> tuple[Change, ...]:
    """Pins and annotations that have to change."""
    now_s = int(seen.snapshot.now_s)
    wanted = {**dict(_wanted(releases, seen.jobs, now_s)), **dict(_waiting_groups(plan, releases, seen))}
    live = live_groups(seen.jobs.values())
    standing = {
        job_id for group in live if group.is_complete and group.verified is not False for job_id in group.job_ids
    }
    beside = _as_they_run(live)
    # The cost of their preemption is being recorded on them.
    leaving = {job.job_id for job in seen.snapshot.jobs if job.asked_to_leave}
    changes: list[Change] = []
    for record in seen.jobs.values():
        if record.state == "COMPLETING" or record.job_id in leaving:
            continue
        if not record.admin_comment and record.job_id not in wanted:
            continue  # nothing of ours is on it, and nothing is to be
        present = GroupAnnotation.of(record.admin_comment)
        if record.job_id in wanted:
            note = _patient(wanted[record.job_id], present, now_s)
        elif record.state == "PENDING":
            note = present if present.pause_s > now_s else GroupAnnotation()
        else:  # the pin of a running job stays on record: if it is requeued, it must be known as ours
            kept = (present.group, present.size) if record.job_id in standing else (None, 0)
            number, size = beside.get(record.job_id, kept)
            note = replace(present, group=number, size=size)
        changes += _change(record, present, note)
    return tuple(changes)


def _as_they_run(groups: Iterable[LiveGroup]) -> Mapping[int, tuple[int, int]]:
    """(number, size) of the group of each job that shares its GPU with jobs of other planned groups than its own.

    Slurm can start jobs between the look at it and the writing of annotations: the groups of the former pass run, while
    this pass annotates the same jobs with other groups. It refuses the pins among these changes, and takes the rest.
    """
    there: defaultdict[Device, list[tuple[int, LiveGroup]]] = defaultdict(list)
    for group in groups:
        for job_id, device in group.running:
            there[device].append((job_id, group))
    return {
        job_id: (min(job for job, _ in members), len(members))
        for device, members in there.items()
        if device and len(members) > 1 and _differ([group for _, group in members])
        for job_id, _ in members
    }


def _differ(groups: Sequence[LiveGroup]) -> bool:
    """Whether these groups of jobs on one GPU are several, or one whose other jobs are elsewhere."""
    apart = any(group.is_complete and group.verified is False for group in groups)
    return apart or len({(group.number, group.size) for group in groups}) > 1


def _wanted(releases: Releases, jobs: Mapping[int, SlurmJob], now_s: int) -> Iterator[tuple[int, GroupAnnotation]]:
    for job_id, node in releases.placed.items():
        yield job_id, GroupAnnotation(node=node, since_s=now_s)
    for sharers in releases.sharers:
        in_group = [job_id for job_id in sharers.job_ids if may_be_annotated(jobs[job_id].admin_comment)]
        number, size = (min(in_group), len(in_group)) if len(in_group) > 1 else (None, 0)
        for job_id in in_group:
            present = GroupAnnotation.of(jobs[job_id].admin_comment)
            if job_id in sharers.running:
                yield job_id, replace(present, group=number, size=size)
            else:
                yield job_id, GroupAnnotation(number, size, sharers.node, now_s)


def _waiting_groups(plan: Plan, releases: Releases, seen: Observation) -> Iterator[tuple[int, GroupAnnotation]]:
    """Groups of which all members wait for GPUs: marked, but pinned to no node."""
    released = set(releases.order)
    for group in plan.groups:
        records = [seen.jobs[job_id] for job_id in group.job_ids]
        if released.isdisjoint(group.job_ids) and all(may_be_pinned(record, seen.snapshot.now_s) for record in records):
            for record in records:
                yield record.job_id, GroupAnnotation(min(group.job_ids), len(records))


def _patient(wanted: GroupAnnotation, present: GroupAnnotation, now_s: int) -> GroupAnnotation:
    """A pin keeps its start time from pass to pass; one that has lasted too long becomes a pause."""
    if not present.node or present.node != wanted.node:
        return wanted
    if now_s - present.since_s > PATIENCE_S and wanted.since_s == now_s:
        return GroupAnnotation(pause_s=now_s + int(PAUSE_S))
    return replace(wanted, since_s=present.since_s)


def _change(record: SlurmJob, present: GroupAnnotation, note: GroupAnnotation) -> Iterator[Change]:
    """The change of a job's pin. Nodes that the job's owner asked for, before or after, are never removed."""
    pins = bool(note.node) and record.required_nodes != (note.node,)
    if record.state == "PENDING" and (pins or (is_pinned(record) and not note.node)):
        yield TargetJob(record.job_id, (note.node,) if note.node else (), note.written(record.admin_comment))
    elif note != present:
        yield SetAdminComment(record.job_id, note.written(record.admin_comment))


_LOG = logging.getLogger("explsched.groups")


def log_groups(before: Sequence[LiveGroup], now: Sequence[LiveGroup]) -> None:
    """Log the differences between the groups of two passes."""
    for level, message, group in differences(before, now):
        jobs = ",".join(map(str, group.job_ids))
        event(_LOG, level, message, group=group.number, of=group.size, jobs=jobs, devices=_devices(group))


def differences(before: Sequence[LiveGroup], now: Sequence[LiveGroup]) -> Iterator[tuple[int, str, LiveGroup]]:
    """(level, what happened, the group) of every group that is new, verified, apart or over."""
    known = {(group.number, group.size): group for group in before}
    for group in now:
        last = known.pop((group.number, group.size), None)
        if not group.running:
            continue  # which of those that wait will be together may change with every pass
        if last is None or not last.running:
            yield logging.INFO, "group starts", group
        if not group.is_complete:
            continue
        was = last.verified if last is not None and last.is_complete else None
        if group.verified is False and was is not False:
            yield logging.WARNING, "group is apart: Slurm chose different GPUs", group
        elif group.verified and not group.waiting and not (was and last is not None and not last.waiting):
            yield logging.INFO, "group verified: all its jobs run on the same GPU", group
    for group in known.values():
        if group.running:
            yield logging.INFO, "group dissolved", group


def pinned(jobs: Iterable[SlurmJob], changes: Iterable[Change], failures: Iterable[ChangeFailure]) -> Mapping[int, str]:
    """The waiting jobs that we have pinned once these changes are made, and their nodes; none of a failed change."""
    failed = {failure.change for failure in failures}
    nodes = {job.job_id: job.required_nodes[0] for job in jobs if job.state == "PENDING" and is_pinned(job)}
    new = {
        change.job_id: "" if change in failed else ",".join(change.nodes)
        for change in changes
        if isinstance(change, TargetJob)
    }
    return {job_id: node for job_id, node in {**nodes, **new}.items() if node}


def log_placements(before: Mapping[int, str], jobs: Mapping[int, SlurmJob]) -> None:
    """Log where the jobs run that were pinned in the pass before and have started."""
    for job_id, node in before.items():
        job = jobs.get(job_id)
        if job is None or not job.node_names:
            continue
        if job.node_names == (node,):
            event(_LOG, logging.INFO, "placement verified: it runs on the planned node", job=job_id, node=node)
        else:
            where = ",".join(job.node_names)
            event(_LOG, logging.WARNING, "Slurm chose another node", job=job_id, planned=node, node=where)


def device_name(device: Device) -> str:
    """GPUs as in `n1:0` or `n1:0,1+n2:0`; empty if they are not known."""
    return "+".join(f"{node}:{','.join(map(str, indices))}" for node, indices in device)


def _devices(group: LiveGroup) -> str:
    return " ".join(sorted({device_name(device) or "unknown" for _, device in group.running}))
