"""Jobs with the stage times of the published models."""

from __future__ import annotations

import numpy as np

from sched_policy.model import StageProfile
from sched_policy.snapshot import Floats
from simulation.muri.matching import efficiencies
from simulation.traces.generate import MODELS, profile


def profiles(gpus: int = 1) -> list[StageProfile]:
    return [profile(model, gpus) for model in MODELS]


def different(jobs: int, seed: int) -> list[StageProfile]:
    """Jobs of the published models, each time off by up to a quarter: no two are alike."""
    rng = np.random.default_rng(seed)
    known = profiles(8)
    made = []
    for model in rng.integers(0, len(known), jobs).tolist():
        base, off = known[model], rng.uniform(0.75, 1.25, 4).tolist()
        made.append(
            StageProfile(base.iteration_s * off[0], base.io_s * off[1], base.gpu_s * off[2], base.net_s * off[3])
        )
    return made


def efficiencies_of_pairs(jobs: list[StageProfile]) -> Floats:
    """Shape (J, J)."""
    columns = np.array([(job.iteration_s, job.io_s, job.gpu_s, job.net_s) for job in jobs])
    count = len(jobs)
    groups = np.stack([columns.repeat(count, axis=0), np.tile(columns, (count, 1))], axis=1)
    return efficiencies(groups).reshape(count, count)
