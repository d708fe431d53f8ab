"""Exploratory workloads: hyper-parameter sweeps of recorded curves, many of them abandoned by their owners."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct

from benchmarks.exploratory.recorded import RecordedCurve
from explsched.errors import ExplschedError
from sched_policy.model import Exploration
from sched_policy.snapshot import Floats, Ints
from simulation.traces.learning import Learning
from simulation.traces.trace import ClusterShape, Trace, TraceJob


class Owner(Struct, frozen=True):
    """When owners abandon a job: a rule of thumb, stated so that it can be measured.

    Owners check the curve `checks` times, evenly over the planned run, and compare the job's loss reduction so far with
    the best of its sweep at the same share of the run. They abandon the job at a check when its reports have ended (it
    diverged), when it is far *behind*, or when it has *stalled* and is no contender; contenders may finish. ExplSched
    (CLUSTER 2023) reports that more than 30 % of the jobs of real clusters end early.

    Attributes:
        checks: checks per run; the last one, at the end of the run, has no effect.
        first_check: earlier checks are not judged: every training starts slowly.
        behind: a job is behind while its loss reduction is less than this share of the sweep's best one.
        contender: a job is a contender while it is at least this share.
        patience: checks over which a job has to improve.
        least_improvement: the share of its loss reduction so far that it has to add over `patience` checks.

    """

    checks: int = 10
    first_check: int = 3
    behind: float = 0.25
    contender: float = 0.9
    patience: int = 3
    least_improvement: float = 0.02

    def leaves_at(self, losses: Floats, epochs: int, best_of_sweep: Floats) -> float | None:
        """The share of the run, below 1, at which the owner abandons the job; None if it may finish.

        `losses` (E + 1,) starts before the first epoch and ends early where the training diverged;
        `best_of_sweep` (checks + 1,) is the lowest loss any training of the sweep has reached at each check.
        """
        reached = self.best_at_checks(losses, epochs)
        for check in range(self.first_check, self.checks):
            ended = len(losses) - 1 < check * epochs // self.checks
            reduction, possible = losses[0] - reached[check], losses[0] - best_of_sweep[check]
            earlier = losses[0] - reached[max(0, check - self.patience)]
            stalled = reduction - earlier <= self.least_improvement * earlier
            behind = reduction < self.behind * possible
            if ended or behind or (stalled and reduction < self.contender * possible):
                return check / self.checks
        return None

    def best_at_checks(self, losses: Floats, epochs: int) -> Floats:
        """The lowest loss of one training by each check, shape (checks + 1,)."""
        epochs_done: Ints = np.minimum(np.arange(self.checks + 1) * epochs // self.checks, len(losses) - 1)
        return np.minimum.accumulate(losses)[epochs_done]


_HOUR_S = 3600.0


class Workload(Struct, frozen=True):
    """The distributions from which an exploratory workload is drawn.

    Sweeps arrive as a Poisson process. Each takes one data set and model family, and as many of its recorded trainings
    as its size says, none twice; their jobs are submitted one after the other by the owner's script.

    Attributes:
        jobs: jobs in all; the last sweep is cut short to meet it.
        overload: GPU time asked for while jobs arrive, as a multiple of what the cluster has in that time. A job asks
            for its run until its end or until its owner gives it up.
        sweep_sizes: jobs per sweep, each as likely.
        gpus: GPUs per job of a sweep, each as likely.
        doubled: share of the jobs that take twice their sweep's GPUs (the larger models and batches).
        epoch_s: median seconds of an epoch.
        epoch_spread: standard deviation of its logarithm between sweeps; log-normal.
        job_spread: the same between the jobs of a sweep.
        gap_s: mean seconds between two submissions of a sweep, exponential.
        users: owners, each as likely.
        owner: when they give up a job.
        seed: of all draws.

    """

    jobs: int = 400
    overload: float = 2.0
    sweep_sizes: tuple[int, ...] = (8, 12, 16, 24)
    gpus: tuple[int, ...] = (1, 1, 1, 2, 2, 4)
    doubled: float = 0.25
    epoch_s: float = 72.0
    epoch_spread: float = 0.6
    job_spread: float = 0.3
    gap_s: float = 10.0
    users: int = 20
    owner: Owner = Owner()
    seed: int = 1

    def generate(self, curves: Sequence[RecordedCurve], cluster: ClusterShape) -> Trace:
        """A trace of `jobs` jobs for that cluster; the same one for the same arguments everywhere.

        Raises `ExplschedError` if no data set and model family has two recorded trainings.
        """
        draw = np.random.default_rng(self.seed)
        families = _families(curves)
        sweeps: list[list[TraceJob]] = []
        left = self.jobs
        while left > 0:
            family = families[draw.integers(len(families))]
            size = min(left, len(family), int(draw.choice(self.sweep_sizes)))
            chosen = [family[i] for i in draw.permutation(len(family))[:size]]
            sweeps.append(self._sweep(draw, chosen, len(sweeps) + 1, self.jobs - left + 1, cluster))
            left -= size
        work_gpu_s = sum(_asked_gpu_s(job) for sweep in sweeps for job in sweep)
        # Given their number, the arrivals of a Poisson process are spread evenly: this meets the overload exactly.
        window_s = work_gpu_s / (self.overload * cluster.gpus)
        arrivals_s = np.sort(draw.uniform(0.0, window_s, len(sweeps)))
        return Trace.of(
            replace(job, submit_s=job.submit_s + float(arrival_s))
            for sweep, arrival_s in zip(sweeps, arrivals_s, strict=True)
            for job in sweep
        )

    def _sweep(
        self,
        draw: np.random.Generator,
        chosen: Sequence[RecordedCurve],
        number: int,
        first_id: int,
        cluster: ClusterShape,
    ) -> list[TraceJob]:
        """The jobs of one sweep, submitted from second 0 on."""
        gpus, user = int(draw.choice(self.gpus)), f"user{draw.integers(self.users) + 1}"
        sweep_epoch_s = self.epoch_s * math.exp(self.epoch_spread * draw.standard_normal())
        submit_s = np.cumsum(draw.exponential(self.gap_s, len(chosen)))
        best = np.min([self.owner.best_at_checks(c.losses, c.training.epochs) for c in chosen], axis=0)
        exploration = Exploration(sweep=f"sweep{number}", checkpoint_signal="USR1", may_stop=True)
        jobs = []
        for i, curve in enumerate(chosen):
            epochs = curve.training.epochs
            epoch_s = sweep_epoch_s * math.exp(self.job_spread * draw.standard_normal())
            share = self.owner.leaves_at(curve.losses, epochs, best)
            abandoned_at_s = None if share is None else share * epochs * epoch_s
            learning = Learning.of_epochs(curve.losses, epochs, epoch_s, float(best[-1]), exploration, abandoned_at_s)
            run_s = epochs * epoch_s
            jobs.append(
                TraceJob(
                    job_id=first_id + i,
                    submit_s=float(submit_s[i]),
                    gpus=min(cluster.gpus, gpus * (2 if draw.random() < self.doubled else 1)),
                    run_s=run_s,
                    iterations=epochs,
                    time_limit_s=_HOUR_S * math.ceil(1.5 * run_s / _HOUR_S),
                    model="/".join(curve.training.sweep),
                    user=user,
                    learning=learning,
                )
            )
        return jobs


def abandoned_share(trace: Trace) -> float:
    """The share of a trace's jobs that their owners do not let finish."""
    left = [job.learning is not None and job.learning.abandoned_at_s is not None for job in trace.jobs]
    return sum(left) / max(len(left), 1)


def _families(curves: Sequence[RecordedCurve]) -> list[list[RecordedCurve]]:
    """Curves by data set and model family, in the order of their names."""
    found: defaultdict[tuple[str, str], list[RecordedCurve]] = defaultdict(list)
    for curve in curves:
        found[curve.training.sweep].append(curve)
    families = [found[name] for name in sorted(found) if len(found[name]) > 1]
    if not families:
        raise ExplschedError("a sweep needs at least two recorded trainings of one data set and model family")
    return families


def _asked_gpu_s(job: TraceJob) -> float:
    """GPU time until the job ends or its owner gives it up."""
    until_s = job.learning.abandoned_at_s if job.learning else None
    return job.gpus * (job.run_s if until_s is None else until_s)
