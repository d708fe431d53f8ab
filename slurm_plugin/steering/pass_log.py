"""The log of passes: what is new since the last one, so that nothing is told again in every pass."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from explsched.log import event
from sched_policy.plan import Plan
from slurm_plugin.client.batch import shown
from slurm_plugin.client.changes import CancelJob, Change, ChangeFailure, RequeueJob, SetGres, SetNodeCount, SignalJob
from slurm_plugin.observation.observe import Observation
from slurm_plugin.steering.grouping import LiveGroup, live_groups, log_groups, log_placements, pinned

_LOG = logging.getLogger("explsched.controller")
_SHOWN = 3


class PassLog:
    """Logs each pass, and remembers of it what need not be told again."""

    def __init__(self) -> None:
        self._refused: frozenset[tuple[str, object, str]] = frozenset()
        self._option_faults: Mapping[int, str] = {}
        self._groups: tuple[LiveGroup, ...] = ()
        self._pinned: Mapping[int, str] = {}

    def note(self, seen: Observation, plan: Plan, changes: Sequence[Change], failures: Sequence[ChangeFailure]) -> None:
        """Log a pass. Refusals and ignored options of the last pass count, but are not logged again."""
        self._log_option_faults(seen)
        _log_changes(plan, changes)
        for failure in failures:
            if _refusal(failure) in self._refused:
                continue
            whose, change = getattr(failure.change, "job_id", None), shown(failure.change)
            event(_LOG, logging.WARNING, "refused by Slurm", job=whose, change=change, why=failure.message)
        self._refused = frozenset(map(_refusal, failures))
        event(
            _LOG,
            logging.INFO,
            "pass",
            jobs=len(seen.snapshot.jobs),
            starts=len(plan.starts),
            reservations=len(plan.reservations),
            changes=len(changes),
            failures=len(failures),
        )
        groups = live_groups(seen.jobs.values())
        log_groups(self._groups, groups)
        self._groups = groups
        log_placements(self._pinned, seen.jobs)
        self._pinned = pinned(seen.jobs.values(), changes, failures)

    def _log_option_faults(self, seen: Observation) -> None:
        """Of each user the first few: whoever changes the options of many jobs in each pass does not fill the log."""
        of_user: defaultdict[str, list[int]] = defaultdict(list)
        for job_id, _fault in sorted(seen.option_faults.items() - self._option_faults.items()):
            of_user[seen.jobs[job_id].user].append(job_id)
        self._option_faults = seen.option_faults
        for user, job_ids in of_user.items():
            for job_id in job_ids[:_SHOWN]:
                event(_LOG, logging.WARNING, "job options ignored", job=job_id, why=seen.option_faults[job_id])
            if more := len(job_ids[_SHOWN:]):
                event(_LOG, logging.WARNING, "job options of more jobs ignored", user=user, jobs=more)


def _log_changes(plan: Plan, changes: Sequence[Change]) -> None:
    """Log what interrupts or resizes jobs."""
    why = {stop.job_id: stop.reason for stop in plan.stops}
    why |= {preemption.job_id: preemption.reason for preemption in plan.preemptions}
    why |= {resize.job_id: resize.reason for resize in plan.resizes}
    for change in changes:
        if isinstance(change, SignalJob | RequeueJob | CancelJob):
            saved = "its checkpoint is saved, or its grace period is over"
            reason = saved if isinstance(change, RequeueJob) else why[change.job_id]
            event(_LOG, logging.INFO, type(change).__name__, job=change.job_id, why=reason)
        elif isinstance(change, SetGres | SetNodeCount):
            event(_LOG, logging.INFO, "resized", job=change.job_id, to=shown(change), why=why[change.job_id])


def _refusal(failure: ChangeFailure) -> tuple[str, object, str]:
    """A refused change, its job and the reason; equal in each pass, although the times of a lease are not."""
    change = failure.change
    whose = getattr(change, "job_id", None) or getattr(change, "name", None)
    return type(change).__name__, whose, failure.message
