"""What `simulate` and `compare` replay, and how: one way to replay under either conventions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from explsched.errors import PolicyError
from simulation.cluster.settings import Estimates, EstimateSource, Settings
from simulation.traces.trace import ClusterShape, Trace

if TYPE_CHECKING:
    from sched_policy.catalog import PolicyOptions
    from sched_policy.policy import JobData, SchedulingPolicy
    from simulation.muri import MuriOptions
    from simulation.results.outcome import TraceOutcome


class TraceReplay(Struct, frozen=True):
    """What is replayed, and how: `Settings` are the convention `slurm`, `MuriOptions` the convention `muri`.

    `options` are those of a site's policies; None for the defaults. `history` is the file of `Settings.history`.
    """

    trace: Trace
    cluster: ClusterShape
    how: Settings | MuriOptions
    options: PolicyOptions | None = None
    history: Path | None = None

    @property
    def conventions(self) -> str:
        """The convention's name."""
        return "slurm" if isinstance(self.how, Settings) else "muri"

    def check(self, policy: str) -> None:
        """Raise `PolicyError` for a name that the convention does not know."""
        if isinstance(self.how, Settings):
            built(policy, self.options)
            return
        from simulation import muri

        muri.check(policy)

    def warnings(self, policies: Sequence[str]) -> tuple[str, ...]:
        """What these policies need and the trace lacks, and what they do without it; one sentence for each need.

        And what differs among the nodes of the trace, and is one here.

        Raises `PolicyError` for a name that is not in the catalogue.
        """
        from sched_policy.policy import JobData, needs_of

        affected: dict[str, list[str]] = {}
        for name in policies:
            for need in needs_of(built(name, self.options)):
                lacking = self._lacking(need.data)
                if lacking:
                    how_many = "no job has" if lacking == len(self.trace.jobs) else f"{lacking:,} jobs have no"
                    text = f"{how_many} {need.data}: {need.without}"
                    if need.data is JobData.RUN_TIMES:
                        text += " (--estimates learnt, exact or noisy:SIGMA supplies run times)"
                    affected.setdefault(text, []).append(name)
        lacks = (f"{', '.join(names)}: {text}" for text, names in affected.items())
        queues = {job.queue for job in self.trace.jobs}
        types = {name for job in self.trace.jobs if job.recorded for name in job.recorded.gpu_types}
        pooled = [f"{len(queues)} queues are replayed as one"] if len(queues) > 1 else []
        if len(types) > 1:
            pooled.append(f"{len(types)} types of GPU ({', '.join(sorted(types))}) are replayed as one")
        return (*lacks, *pooled)

    def _lacking(self, data: JobData) -> int:
        """How many jobs of the trace lack some data."""
        from sched_policy.policy import JobData

        jobs = self.trace.jobs
        match data:
            case JobData.RUN_TIMES:
                if not isinstance(self.how, Settings) or self.how.estimates.source is not EstimateSource.LIMIT:
                    return 0  # by the convention `muri` policies know every run time
                # The end of a job that reports its progress is extrapolated from that.
                return sum(job.time_limit_s is None and job.learning is None for job in jobs)
            case JobData.LEARNING_CURVES:
                return sum(job.learning is None for job in jobs)
            case JobData.STAGE_TIMES:
                return sum(job.stages is None for job in jobs)
            case JobData.PRIORITIES:
                return 0 if any(job.priority for job in jobs) else len(jobs)
            case JobData.PARTS:
                return len(jobs)  # no format has them

    def under(self, policy: str, progress: Callable[[int, int], None] = lambda _ended, _jobs: None) -> TraceOutcome:
        """The outcome under the policy of that name; `progress` is called with (jobs ended, jobs in all) if known.

        Raises `PolicyError` as `check`, and `ExplschedError` if the replay cannot go on.
        """
        self.check(policy)
        if isinstance(self.how, Settings):
            from simulation.cluster import engine

            built_policy = built(policy, self.options)
            if not any(job.learning is not None for job in self.trace.jobs):
                outcome = engine.simulate(self.trace, self.cluster, built_policy, self.how, progress)
                return replace(outcome, policy=policy)
            from simulation.results.outcome import Ending
            from simulation.results.watched_sweeps import WatchedSweeps

            until_s = inf if self.how.until_s is None else self.how.until_s
            watched = WatchedSweeps(job for job in self.trace.jobs if job.submit_s <= until_s)
            outcome = engine.simulate(self.trace, self.cluster, built_policy, self.how, progress, watched.look)
            ends = ((job.job_id, job.end_s, job.spent_gpu_s, job.ending is Ending.COMPLETED) for job in outcome.jobs)
            return replace(outcome, policy=policy, sweeps=watched.reached(ends))
        from simulation import muri

        return muri.simulate(self.trace, self.cluster, policy, self.how)


def built(name: str, options: PolicyOptions | None = None) -> SchedulingPolicy:
    """The policy of that name, with these options or the defaults. Raises `PolicyError`.

    `explsched:asha` is `explsched` with the sweep strategy asha, `explsched:total` with the objective total, as
    `utility.sweep_strategy` and `utility.objective` make them.
    """
    from sched_policy import catalog

    policy, colon, variant = name.partition(":")
    options = options or catalog.PolicyOptions()
    if not colon:
        return catalog.build(name, options)
    if policy != "explsched":
        raise PolicyError(f"{name!r}: only explsched has variants, such as explsched:asha and explsched:total")
    if variant == "total":
        return catalog.build(policy, replace(options, objective=variant))
    return catalog.build(policy, replace(options, objective="best", sweep_strategy=variant))


def check_policies(replay: TraceReplay, names: Sequence[str]) -> None:
    """Raise `UsageError` for a policy that the conventions do not know; warn of data that the trace lacks."""
    try:
        for name in names:
            replay.check(name)
    except PolicyError as error:
        raise click.UsageError(str(error)) from error
    for warning in replay.warnings(names):
        click.echo(f"warning: {warning}", err=True)


def replay_json(replay: TraceReplay, policies: Sequence[str], warnings: Sequence[str] = ()) -> dict[str, object]:
    """JSON fields that describe a replay under these policies, without their figures; `warnings` are of its outcome."""
    more: dict[str, object] = {} if replay.options is None else {"options": to_builtins(replay.options)}
    if replay.history is not None:
        more["history"] = str(replay.history)
    if "themis" in policies:
        from simulation.finish_time import SOLVERS, TIES  # numpy, which other policies may do without

        more["themis"] = {"solver": SOLVERS[getattr(replay.how, "shares", "central")], "ties": TIES}
    # No option of a command has measured pass times.
    how = {
        name: getattr(replay.how, name)
        for name in replay.how.__struct_fields__
        if name not in ("pass_times", "history")
    }
    return {
        "conventions": replay.conventions,
        "settings": {name: str(value) if isinstance(value, Estimates) else value for name, value in how.items()},
        "cluster": to_builtins(replay.cluster),
        "rejected": len(replay.trace.rejected),
        "warnings": (*replay.warnings(policies), *warnings),
        **more,
    }
