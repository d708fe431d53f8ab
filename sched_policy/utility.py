"""What a job is worth: expected improvement of its metric per GPU-second (ExplSched, CLUSTER 2023).

Raw improvements of different metrics do not compare, so each is divided by a scale: the largest improvement
that any member of the job's sweep has shown so far (a job outside a sweep is its own sweep). A utility is thus
"share of the sweep's known improvement per GPU-second", and a configuration that hardly learns is worth little
beside its siblings even when it moves as fast as it ever will.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct

from sched_policy.columns import Floats
from sched_policy.outlook import Outlook, outlook
from sched_policy.prior import prior
from sched_policy.snapshot import Snapshot


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
        known: the outlook they were made from; it has the others, too.
        value: `Utility.value` of each of its jobs, shape (E,); not a number where nothing can be said of a job.
        std: `Utility.std` of each of its jobs, shape (E,).

    """

    def __init__(self, known: Outlook, value: Floats, std: Floats) -> None:
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
    entry, nor has one that has shown nothing and has no prior (`sched_policy.prior`): it counts as a job that does not
    report.
    """
    known = outlook(snapshot.jobs)
    on = known.measured
    ahead = (quantum_s * np.maximum(known.gpus, 1))[on]
    spent = known.spent_gpu_s[on]
    mean, std = known.curves.improvement(spent, spent + np.minimum(ahead, known.horizon_gpu_s[on]))
    value_std = prior(known, snapshot, quantum_s)
    value = value_std.copy()
    value[on] = mean / known.scale[on] / ahead
    value_std[on] = std / known.scale[on] / ahead
    return Utilities(known, value, value_std)
