"""What a job is worth: expected improvement of its metric per GPU-second; the most valuable first (ExplSched, 2023).

Raw improvements of different metrics do not compare, so each is divided by a scale: the largest improvement
that any member of the job's sweep has shown so far (a job outside a sweep is its own sweep). A utility is thus
"share of the sweep's known improvement per GPU-second", and a configuration that hardly learns is worth little
beside its siblings even when it moves as fast as it ever will.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.improvement import RemainingImprovement, remaining_improvement
from sched_policy.model import Job
from sched_policy.order import Order, Srsf
from sched_policy.plan import Ranking
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot
from sched_policy.sweep.choice import Sweeps, chosen


def prior(known: RemainingImprovement, snapshot: Snapshot, quantum_s: float) -> Floats:
    """What an untried training is expected to do: share of the sweep's improvement per GPU-second, shape (E,).

    Optimism in the face of uncertainty: an untried configuration may turn out as good as the best one, and a short look
    costs little. It counts as learning as fast, per GPU-second, as the best of its sweep did in the beginning; where
    nobody has shown anything, as learning the whole of its sweep's improvement in one quantum, whatever its GPUs.

    Nobody may live on that. A prior costs nothing to claim, a sweep's name even less, so

    * a training outside a sweep has none: nothing is looked at for the sake of others;
    * it ends when a training has run for a quantum without enough reports for a curve, or was requeued without them;
    * where nobody of the sweep has shown anything, one training of each user has it at a time, whatever the number of
      the user's sweeps: one that runs, else the first that may start. A job array, which would start many at once, has
      none;
    * a user whose trainings in sweeps have had a quantum in all without a curve, present and recent ones, has none.

    Not a number where there is no prior: the job is ranked as one that does not report. What is said of jobs that are
    measured themselves has no meaning.
    """
    on = known.measured
    gpus = np.maximum(known.gpus, 1)
    ahead_gpu_s = quantum_s * gpus[on]
    first, _ = known.curves.improvement(np.zeros(int(on.sum())), ahead_gpu_s)
    best = np.full(int(known.sweep.max(initial=-1)) + 1, np.nan)
    np.fmax.at(best, known.sweep[on], first / known.scale[on] / ahead_gpu_s)
    shown = best[known.sweep]
    jobs = [snapshot.jobs[row] for row in known.rows.tolist()]
    believed = _believed(known, jobs, snapshot.now_s, quantum_s)
    looks = _first_looks(jobs, believed & np.isnan(shown))
    value = np.where(np.isnan(shown), np.where(looks, 1.0 / (quantum_s * gpus), np.nan), shown)
    return np.where(believed | on, value, np.nan)


def _believed(known: RemainingImprovement, jobs: list[Job], now_s: float, quantum_s: float) -> Bools:
    """Unmeasured trainings that have not had their quantum, of users who have not had theirs; shape (E,)."""
    silent_s: defaultdict[str, float] = defaultdict(float)
    untried = ~known.measured & np.array([claims_a_prior(job) for job in jobs], dtype=np.bool_)
    for i in untried.nonzero()[0].tolist():
        job = jobs[i]
        # How long a job ran before it was requeued is known from its reports only.
        if job.restarts > 0 or job.executed_s(now_s) >= quantum_s:
            untried[i] = False
            silent_s[job.user] += max(quantum_s, job.executed_s(now_s))
    spent = [job.user_silent_s + silent_s[job.user] >= quantum_s for job in jobs]
    return untried & ~np.array(spent, dtype=np.bool_)


def claims_a_prior(job: Job) -> bool:
    """Whether the job says that it belongs to a sweep: without reports that is nothing but a claim."""
    return job.exploration is not None and job.exploration.sweep is not None


def _first_looks(jobs: list[Job], untried: Bools) -> Bools:
    """Of each user's trainings in untried sweeps the one that is looked at first; shape (E,)."""
    runs: dict[str, int] = {}
    waits: dict[str, int] = {}
    for i in untried.nonzero()[0].tolist():
        job = jobs[i]
        if job.holds_gpus:
            runs.setdefault(job.user, i)
        elif job.eligible and job.array_tasks == 1:
            waits.setdefault(job.user, i)
    looks = np.zeros(len(jobs), dtype=np.bool_)
    looks[list({**waits, **runs}.values())] = True
    return looks


class Utility(Struct, frozen=True):
    """A job's expected share of improvement per GPU-second, over the next quantum.

    `std` is its standard deviation; `remaining` is the expected improvement (same scale) until the end of the
    job as far as that is known, `remaining_std` its standard deviation; `best` is the job's best metric value
    so far, oriented so that lower is better. `measured` is false where the sweep's prior stands in.
    """

    value: float
    std: float
    remaining: float
    remaining_std: float
    best: float | None
    scale: float
    measured: bool


class Utilities(Mapping[int, Utility]):
    """The utilities of the jobs that take part in exploration and can be judged, by job id.

    Attributes:
        known: the figures they were made from; it has the others, too.
        value: `Utility.value` of each of its jobs, shape (E,); not a number where nothing can be said of a job.
        std: `Utility.std` of each of its jobs, shape (E,).

    """

    def __init__(self, known: RemainingImprovement, value: Floats, std: Floats) -> None:
        self.known = known
        self.value = value
        self.std = std

    @cached_property
    def _position(self) -> Mapping[int, int]:
        judged = (~np.isnan(self.value)).tolist()
        return {job_id: i for i, job_id in enumerate(self.known.job_id.tolist()) if judged[i]}

    def __getitem__(self, job_id: int) -> Utility:
        i = self._position[job_id]
        measured = bool(self.known.measured[i])
        return Utility(
            value=float(self.value[i]),
            std=float(self.std[i]),
            remaining=float(self.known.remaining[i]),
            remaining_std=float(self.known.remaining_std[i]),
            best=float(self.known.best[i]) if measured else None,
            scale=float(self.known.scale[i]),
            measured=measured,
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self._position)

    def __len__(self) -> int:
        return len(self._position)


def estimate(snapshot: Snapshot, quantum_s: float) -> Utilities:
    """Utilities of the jobs of a snapshot that take part in exploration.

    `quantum_s` is how far ahead a decision looks, in seconds of a job's run time. Jobs without an `Exploration` have no
    entry, nor has one that has shown nothing and has no `prior`: it counts as a job that does not report.
    """
    known = remaining_improvement(snapshot.jobs)
    on = known.measured
    ahead = (quantum_s * np.maximum(known.gpus, 1))[on]
    spent = known.spent_gpu_s[on]
    mean, std = known.curves.improvement(spent, spent + np.minimum(ahead, known.horizon_gpu_s[on]))
    value_std = prior(known, snapshot, quantum_s)
    value = value_std.copy()
    value[on] = mean / known.scale[on] / ahead
    value_std[on] = std / known.scale[on] / ahead
    return Utilities(known, value, value_std)


class ByUtility(Struct, frozen=True):
    """Order by utility; jobs that report nothing are ranked by `fallback` and spread evenly among the others.

    Spreading: the k-th best of m silent jobs gets the utility at quantile 1 - (k + 1/2)/m of the reporting
    ones (of those with a prior, where none reports), so that neither kind can starve the other as a whole. In each
    scope by itself: what one user reports says nothing of another's silent jobs.

    Attributes:
        quantum_s: how far ahead a decision looks, in seconds of the job's run time.
        fallback: the order of jobs that take no part in exploration.

    """

    quantum_s: float = 600.0
    fallback: Order = Srsf()

    needs_durations: ClassVar[bool] = True

    def utilities(self, snapshot: Snapshot) -> Utilities:
        """Utilities of the jobs that take part in exploration."""
        return estimate(snapshot, self.quantum_s)

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Utility in percent of the sweep's known improvement per GPU-hour."""
        utilities = self.utilities(snapshot)
        job_id = snapshot.columns.job_id
        values = np.full(len(job_id), np.nan)
        rows, measured = utilities.known.rows, utilities.known.measured
        values[rows] = 100.0 * 3600.0 * utilities.value
        has_learned = np.zeros(len(job_id), dtype=np.bool_)
        has_learned[rows[measured]] = True
        fallback = self.fallback.rank(snapshot)
        place = np.empty(len(job_id), dtype=np.int64)
        place[fallback.rows] = np.arange(len(job_id))
        for members in snapshot.rows_by_scope:
            _spread_silent(values, has_learned, members[np.argsort(place[members])])

        def reason(row: int) -> str:
            utility = utilities.get(int(job_id[row]))
            if utility:
                return _reason(utility)
            shows = "reports no progress" if snapshot.jobs[row].exploration is None else "has shown no curve"
            return f"{shows}; {fallback[int(place[row])].reason}"

        return Ranking(snapshot, values, reason)


def _spread_silent(values: Floats, has_learned: Bools, members: Ints) -> None:
    """Give the silent jobs of a scope (those without a value) levels of its others; `members` in the silent order."""
    learned = values[members[has_learned[members]]]
    known = values[members]
    levels = -np.sort(-(learned if learned.size else known[~np.isnan(known)]))
    silent = members[np.isnan(known)]
    share = (np.arange(silent.size) + 0.5) / max(silent.size, 1)
    values[silent] = (
        levels[(share * levels.size).astype(np.int64)] if levels.size else silent.size - np.arange(silent.size)
    )


def _reason(utility: Utility) -> str:
    rate, spread = 100.0 * 3600.0 * utility.value, 100.0 * 3600.0 * utility.std
    if not utility.measured:
        return f"no curve yet, explored on its sweep's prior of {rate:.3g} %/GPU-h"
    return f"expected improvement {rate:.3g} +- {spread:.2g} %/GPU-h"


class BySweep(Struct, frozen=True):
    """Jobs of sweeps by their place; the other jobs by another order, spread evenly among them.

    Spread, so that neither kind can starve the other as a whole, in each scope by itself. Scores are places counted
    from the end: they compare within one ranking and scope only.
    """

    sweeps: Sweeps
    others: Order = ByUtility()

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Higher is earlier."""
        wishes = chosen(self.sweeps, snapshot).wishes
        if not wishes:
            return self.others.rank(snapshot)
        of_sweep = [wishes.get(job_id) for job_id in snapshot.columns.job_id.tolist()]
        is_other: Bools = np.array([wish is None for wish in of_sweep], dtype=np.bool_)
        # By themselves: nobody asks what the others' order would say of the jobs of sweeps, and it takes as long.
        other_rows = is_other.nonzero()[0]
        rest = self.others.rank(snapshot.only(other_rows))
        place = np.full(len(of_sweep), np.inf)  # those that should not run now
        place[other_rows[rest.rows]] = np.arange(other_rows.size)
        wanted = [(row, wish.place) for row, wish in enumerate(of_sweep) if wish and wish.place is not None]
        place[[row for row, _ in wanted]] = [nth for _, nth in wanted]
        values = np.zeros(len(of_sweep))
        for members in snapshot.rows_by_scope:
            runs = members[np.isfinite(place[members])]
            for queue in (runs[is_other[runs]], runs[~is_other[runs]]):
                in_order = queue[np.argsort(place[queue])]
                values[in_order] = 1.0 + len(members) * (1.0 - (np.arange(queue.size) + 0.5) / queue.size)

        def reason(row: int) -> str:
            wish = of_sweep[row]
            return rest[int(place[row])].reason if wish is None else wish.reason

        return Ranking(snapshot, values, reason, rest.stable_until_s)
