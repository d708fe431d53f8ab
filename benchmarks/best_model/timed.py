"""A drawn sweep as jobs of the project's simulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.best_model.drawn import Curve, DrawnSweep
from sched_policy.model import Exploration
from simulation.traces.learning import Learning
from simulation.traces.trace import Trace, TraceJob

LONGEST_S = 365 * 86400.0


def trace(drawn: Sequence[DrawnSweep]) -> Trace:
    """All sweeps submitted at second 0, each by a user of its own, their jobs in turn."""
    jobs = []
    for k, sweep in enumerate(drawn):
        for row, curve in enumerate(sweep.curves):
            jobs.append(_job(row * len(drawn) + k + 1, f"user{k + 1}", curve, sweep))
    return Trace.of(jobs)


def _job(job_id: int, user: str, curve: Curve, sweep: DrawnSweep) -> TraceJob:
    steps = max(1, round(curve.planned_s))
    params = tuple(curve.params.items())
    exploration = Exploration(f"{user}-{sweep.task}", checkpoint_signal="USR1", may_stop=True, params=params)
    # Steps are seconds of training.
    seen = np.maximum(1, np.rint(curve.times_s)).astype(np.int64)
    learning = Learning(curve.values, curve.times_s, seen, steps, sweep.best, exploration)
    return TraceJob(job_id, 0.0, 1, curve.run_s, iterations=steps, time_limit_s=LONGEST_S, user=user, learning=learning)
