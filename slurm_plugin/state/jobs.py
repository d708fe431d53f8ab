"""The row of each job in `status`, and its sentences in `explain`, made from a view. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from explsched.parameters import listed
from explsched.preemption_record import PreemptionRecord
from sched_policy.model import Job, JobState, NodeGpus
from sched_policy.plan import Start
from slurm_plugin.client.notation import clock
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.client.wait_reason import WaitReason
from slurm_plugin.observation.gpu_hours import gpus_of
from slurm_plugin.observation.observe import asks_for_gpus
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.requirements import Needs, most_shards_per_gpu
from slurm_plugin.observation.standing import SETTLE_S, may_start, waits_for_begin, waits_for_requeue_delay
from slurm_plugin.state.published import Explanation, JobRow
from slurm_plugin.state.view import View

_HOLDS_ONLY = {
    "SUSPENDED": "it holds its GPUs, but does not run",
    "STOPPED": "it holds its GPUs, but does not run",
    "CONFIGURING": "its nodes are not ready yet",
}
"""States in which a job holds its GPUs, which counts as running, but does no work."""


def rows(view: View) -> list[JobRow]:
    """All jobs of the view, best score first."""
    jobs = {job.job_id: job for job in view.seen.snapshot.jobs}
    return [_row(view, jobs[job_id]) for job_id in view.scores]


def _row(view: View, job: Job) -> JobRow:
    record = view.seen.jobs[job.job_id]
    progress = view.seen.progress.get(job.job_id, JobProgress())
    utility = view.utilities.get(job.job_id)
    past = view.seen.preempted.get(job.job_id, PreemptionRecord(job.submit_s))
    reservation = view.reservations.get(job.job_id)
    planned_s = view.seen.snapshot.now_s if job.job_id in view.starts else reservation.start_s if reservation else None
    last = job.points[-1] if job.points else None
    total = f"/{job.total_steps}" if job.total_steps else ""
    return JobRow(
        jobid=job.job_id,
        partition=record.partition,
        name=job.name,
        user=job.user,
        state=job.state.value,
        gpus=gpus_of(job),
        tasks=job.array_tasks,
        sweep=(job.exploration.sweep or "") if job.exploration else "",
        step=f"{last.step}{total}" if last else "-",
        metric=job.exploration.metric if job.exploration else "",
        value=_finite(last.value) if last else None,
        utility=_finite(360_000 * utility.value) if utility and utility.measured else None,
        score=_finite(view.scores[job.job_id].value),
        gpu_hours=view.seen.gpu_hours(job),
        restarts=job.restarts,
        preempted=past.count,
        lost_gpu_s=past.lost_gpu_s,
        planned=clock(planned_s) if job.state is JobState.PENDING else "",
        reservation=record.reservation,
        device=view.sharers.device(job.job_id),
        sharing=view.sharers.summary(job.job_id),
        malformed=progress.malformed + progress.not_finite,
        params=listed(job.exploration.params if job.exploration else sorted(progress.parameters.values.items())),
        params_changed=len(progress.parameters.changed),
        reason=_reason(view, job, progress),
        belongs_to=record.array_job_id or record.het_job_id or job.job_id,
    )


def _finite(value: float) -> float | None:
    """None for NaN and infinity, which JSON does not have: infinite is the score of a job without a time limit."""
    return value if math.isfinite(value) else None


def _reason(view: View, job: Job, progress: JobProgress) -> str:
    """Slurm's reason for a waiting job, then the first of: a fault of its own, jobs that share its GPU, its score."""
    fault = view.seen.option_faults.get(job.job_id)
    fault = f"its options are ignored: {fault}" if fault else progress.refused
    ours = fault or view.sharers.summary(job.job_id) or view.scores[job.job_id].reason
    record = view.seen.jobs[job.job_id]
    if job.state is not JobState.PENDING:
        return f"{record.state}; {ours}" if record.state in _HOLDS_ONLY else ours
    slurms = record.reason
    if fault:
        return f"{slurms}; {fault}"
    if why := view.seen.unmodelled.get(job.job_id):
        return f"{slurms}; left to Slurm, because {why}"
    return f"{slurms}; {ours}" if job.eligible else slurms


def explanations(view: View) -> Iterator[Explanation]:
    """All jobs that wait or run, those that are not steered included."""
    jobs = {job.job_id: job for job in view.seen.snapshot.jobs}
    per_gpu = most_shards_per_gpu(view.seen.nodes.values())
    for record in view.seen.jobs.values():
        job = jobs.get(record.job_id)
        sentences = tuple(_sentences(view, job)) if job else (_not_steered(view, record.job_id, per_gpu),)
        yield Explanation(record.job_id, record.user, job is not None, sentences)


def _not_steered(view: View, job_id: int, shards_per_gpu: int) -> str:
    """Why a job that Slurm has is not in the plan."""
    record = view.seen.jobs[job_id]
    if not asks_for_gpus(record, shards_per_gpu):
        why = "it asks for no GPUs"
    else:
        why = f"it may start in {record.partition}, not all of which is steered"
    slurms = f" Slurm says: {record.reason}." if record.state == "PENDING" else ""
    return f"Job {job_id} of {record.user}: {record.state}, left to Slurm because {why}.{slurms}"


def _sentences(view: View, job: Job) -> Iterator[str]:
    record = view.seen.jobs[job.job_id]
    yield f"Job {job.job_id} of {job.user}: {job.state}, {_gpus(gpus_of(job))} in partition {record.partition}."
    if job.state is JobState.PENDING:
        # None of a job that may not start yet: sprio does not list it.
        factor = "" if record.site_factor is None else f", site factor {record.site_factor}"
        yield f"Slurm says: {record.reason}; priority {record.priority}{factor}."
    elif record.state in _HOLDS_ONLY:
        yield f"Slurm says: {record.state}; {_HOLDS_ONLY[record.state]}."
    yield f"Rank {view.ranks[job.job_id]} of {len(view.ranks)} under policy {view.config.policy}: " + (
        f"{view.scores[job.job_id].reason}."
    )
    if job.state is JobState.PENDING:
        yield _waiting(view, job)
        if job.is_overdue:
            yield "It has waited for so long that it comes first in its scope."
    if record.reservation:
        yield f"It is in reservation {record.reservation}."
    yield from view.sharers.sentences(job)
    yield from _progress(view, job)
    yield from _consent(view, job)
    yield from _history(view, job)
    yield from _sizes(view, job)
    yield from _sharing(view, job)


def _nearness(view: View, placement: Sequence[NodeGpus]) -> str:
    """Below which switches a gang's nodes are; "" if it has one node or the topology is not used."""
    if len(placement) == 1:
        return ""
    if fault := view.seen.cluster.topology.fault:
        return f" It gets no reservation, since Slurm chooses its nodes by a network that is not known ({fault})."
    leaves = {node.name: node.switches[0].name for node in view.seen.snapshot.nodes if node.switches}
    used = sorted({leaves[share.node] for share in placement if share.node in leaves})
    return f" Its {len(placement)} nodes are near each other, below {', '.join(used)}." if used else ""


def _waiting(view: View, job: Job) -> str:
    """What the plan means for the job, and what prevents its start."""
    record, now_s = view.seen.jobs[job.job_id], view.seen.snapshot.now_s
    if why := view.seen.unmodelled.get(job.job_id):
        return f"It is left to Slurm, because {why}: it gets no reservation, and no job is preempted for it."
    if job.job_id in view.plan.rests:
        return _resting(record, now_s)
    if record.is_throttled and (record.waits_for is WaitReason.ARRAY_LIMIT or may_start(record, now_s)):
        until = "Slurm has tested it again" if record.is_outdated else "one has ended"
        return f"As many tasks of its array ran as the array's own limit lets, so it is not planned until {until}."
    if not job.eligible:
        return "Slurm would not start it now, so it is not planned."
    if waits_for_requeue_delay(record, now_s):
        ago_s = max(0.0, now_s - record.submit_s)
        return f"It was requeued {ago_s:.0f} s ago; it may start again {SETTLE_S:.0f} s after that."
    start = view.starts.get(job.job_id)
    if start is not None:
        return _starting(view, record, start)
    reservation = view.reservations.get(job.job_id)
    if reservation is not None:
        planned = f"Its start is planned for {clock(reservation.start_s)}: {reservation.reason}."
        refused = view.seen.known.refused_leases.get(job.job_id)
        without = f" Slurm has refused a reservation for it: {' '.join(refused.split())}." if refused else ""
        return f"{planned}{_nearness(view, reservation.placement)}{without}"
    return f"{_blocked(view, job)}."


def _blocked(view: View, job: Job) -> str:
    """Why a job has no planned start, and who leaves; without a full stop."""
    if short := _short_of_nodes(view, job):
        return short
    leaves = {preemption.job_id for preemption in view.plan.preemptions if preemption.beneficiary == job.job_id}
    if job.job_id in view.ahead.firsts:
        why = "No job waits before it, but the GPUs that it needs are not free"
        if rival := view.ahead.rivals.get(job.job_id):
            queued = view.seen.jobs[rival].partition
            why = f"The GPUs that it needs are not free, and job {rival} in {queued} may come before it"
        where = frozenset(view.seen.jobs[job.job_id].partitions)
        near = {name for name, node in view.seen.nodes.items() if not where.isdisjoint(node.partitions)}
        going = (other for other in view.seen.snapshot.running if other.is_leaving)
        leaves |= {other.job_id for other in going if not near.isdisjoint(share.node for share in other.allocation)}
    else:
        why = "It is blocked by jobs that come before it, and starts when they leave room"
    if not leaves:
        return why
    named = ", ".join(map(str, sorted(leaves)))
    return f"{why}; job {named} is about to leave" if len(leaves) == 1 else f"{why}; jobs {named} are about to leave"


def _short_of_nodes(view: View, job: Job) -> str:
    """What the nodes that suit the job lack even if no job held any of them: others are down or drained; or ""."""
    nodes, request = view.seen.snapshot.nodes, job.request
    gpus = nodes.gpus[nodes.usable(job.partition)]
    if request.per_node is None:
        there, needed = int(gpus.sum()), request.total
        said = f"The nodes that suit it and are usable now have {_gpus(there)}, and it needs {needed}"
    else:
        there, needed = int((gpus >= request.per_node).sum()), request.nodes
        said = f"Of the nodes that suit it {there} {'is' if there == 1 else 'are'} usable now, and it needs {needed}"
    return "" if there >= needed or job.elastic is not None else said


def _resting(record: SlurmJob, now_s: float) -> str:
    """Why a training does not continue although GPUs may be idle."""
    until = f" until {clock(record.eligible_s)}" if waits_for_begin(record, now_s) else ""
    return (
        f"Its sweep keeps it paused, also while GPUs are idle. The daemon delays its start{until} "
        f"and renews the delay; scontrol update JobId={record.job_id} Comment= takes it out of the sweep."
    )


def _starting(view: View, record: SlurmJob, start: Start) -> str:
    """What a planned start still needs: CPUs and memory, or a cycle of Slurm."""
    where = ", ".join(f"{share.gpus} on {share.node}" for share in start.placement)
    needs = Needs.of(record)
    shorts = ((share.node, needs.lacks_now(view.seen.nodes[share.node])) for share in start.placement)
    for node, short in shorts:
        if short:
            return f"GPUs for it are free ({where}), but {node} has too few {short} left."
    if record.waits_for is WaitReason.UNTESTED:
        return f"GPUs for it are free ({where}); Slurm has not tested it since it was submitted or changed."
    keeper = view.ahead.keeps.get(record.job_id)
    unless = f", unless it keeps them for job {keeper}, which comes before it" if keeper is not None else ""
    return f"GPUs for it are free ({where}): Slurm can start it in its next cycle{unless}."


def _progress(view: View, job: Job) -> Iterator[str]:
    progress = view.seen.progress.get(job.job_id, JobProgress())
    if progress.refused:
        yield f"Its progress file is not read: {progress.refused}."
    elif job.points:
        last = job.points[-1]
        yield f"It has reported {len(job.points)} times, last step {last.step} with {last.value:.6g}."
    elif job.exploration is not None:
        others = progress.instead_of(job.exploration.metric)
        yield f"It has not reported {job.exploration.metric} yet" + (
            f", but {', '.join(others)}: --metric of sxbatch names the metric that counts." if others else "."
        )
    params = job.exploration.params if job.exploration else sorted(progress.parameters.values.items())
    if params:
        yield f"Its hyper-parameters: {listed(params)}."
    if progress.parameters.changed:
        yield f"{len(progress.parameters.changed)} of them differed between its runs: those of the last run count."
    if progress.not_finite:
        yield f"Reports of NaN or infinite values: {progress.not_finite}; they are progress without improvement."
    if progress.malformed:
        yield (
            f"Lines of its progress file that are not counted: {progress.malformed}; they are malformed, or their step "
            "is before one that was reported in the same run."
        )


def _consent(view: View, job: Job) -> Iterator[str]:
    fault = view.seen.option_faults.get(job.job_id)
    if fault:
        yield f"Its options are ignored: {fault}."
    if job.exploration is None:
        yield "It takes no part in exploration: it is never preempted or stopped by explsched."
        return
    signal = job.exploration.checkpoint_signal
    if signal and (why := view.seen.spares.get(job.job_id)):
        yield f"It allows preemption after SIG{signal}, but is not preempted now: {why}."
    else:
        yield f"It may be preempted after SIG{signal}." if signal else "It may not be preempted."
    yield "It may be stopped early." if job.exploration.may_stop else "It may not be stopped early."
    reasons = [p.reason for p in view.plan.preemptions if p.job_id == job.job_id]
    reasons += [stop.reason for stop in view.plan.stops if stop.job_id == job.job_id]
    for reason in reasons:
        yield f"The current plan interrupts it: {reason}."


def _history(view: View, job: Job) -> Iterator[str]:
    """When and why it was preempted, and what that cost."""
    past = view.seen.preempted.get(job.job_id)
    if past is None or not past.count:
        return
    times = "once" if past.count == 1 else f"{past.count} times"
    yield (
        f"It has been preempted {times} since its submission at {clock(past.submitted_s)}; "
        f"{past.lost_gpu_s:.0f} GPU-seconds of work were lost, counted from the last checkpoint that it reported."
    )
    for one in past.latest:
        why = f": {one.reason}" if one.reason else ""
        yield f"{clock(one.time_s)}: gave up {_gpus(one.gpus)}, lost {one.lost_gpu_s:.0f} GPU-seconds{why}."
    if job.start_s is not None and job.first_report_s is not None:
        took_s = max(0.0, job.first_report_s - job.start_s)  # the node's clock may be behind slurmctld's
        yield f"Starting again took {took_s:.0f} s until its first report."


def _sizes(view: View, job: Job) -> Iterator[str]:
    if job.elastic is None:
        options = view.seen.options(job.job_id)
        if options is not None and options.elastic is not None:
            needs = "it must ask for GPUs on each node and nothing that is left to Slurm"
            keep = "arrays keep theirs, and where users' CPUs are limited, jobs over several nodes"
            yield f"Its sizes are not used: {needs}; {keep}."
        return
    sizes = ", ".join(str(request.total) for request in job.elastic.requests())
    yield f"It is elastic: it can run with {sizes} GPUs."
    for resize in view.plan.resizes:
        if resize.job_id == job.job_id:
            yield f"The current plan resizes it to {resize.request.total}: {resize.reason}."


def _sharing(view: View, job: Job) -> Iterator[str]:
    options = view.seen.options(job.job_id)
    if options is None:
        return
    if not options.guaranteed:
        yield "It is opportunistic: it takes GPUs that guaranteed jobs leave."
    if options.sharing is None:
        return
    told = {
        "class": options.sharing.share,
        "request": _fraction(options.sharing.request_permille),
        "limit": _fraction(options.sharing.limit_permille),
    }
    yield f"Its kernels share a GPU: {', '.join(f'{name} {value}' for name, value in told.items() if value)}."


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _fraction(permille: int | None) -> str | None:
    return None if permille is None else f"{permille / 1000:g}"
