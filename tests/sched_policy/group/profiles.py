"""Iteration and stage times of eight models on 1 and 8 GPUs, in ms: iteration, io, gpu, net (Muri's profile)."""

from __future__ import annotations

import numpy as np

from sched_policy.columns import Floats
from sched_policy.group.interleave_many import efficiencies
from sched_policy.model import StageProfile

_MS = {
    1: {
        "vgg16": (107, 117, 68, 0),
        "vgg19": (109, 114, 80, 0),
        "resnet18": (779, 711, 110, 0),
        "shufflenet_v2_x1_0": (798, 706, 59, 0),
        "bert": (178, 0.5, 160, 0),
        "gpt2": (426, 0.6, 410, 0),
        "a2c": (517, 514, 14, 0),
        "dqn": (490, 446, 8, 0),
    },
    8: {
        "vgg16": (214, 82, 75, 66),
        "vgg19": (226, 82, 88, 60),
        "resnet18": (1010, 784, 117, 77),
        "shufflenet_v2_x1_0": (957, 769, 57, 10),
        "bert": (192, 0.5, 167, 59),
        "gpt2": (437, 0.6, 419, 49),
        "a2c": (555, 502, 14, 0.4),
        "dqn": (509, 435, 8, 0.5),
    },
}


def profile(model: str, gpus: int = 1) -> StageProfile:
    iteration, io, gpu, net = _MS[gpus][model]
    return StageProfile(iteration / 1e3, io / 1e3, gpu / 1e3, net / 1e3)


def profiles(gpus: int = 1) -> list[StageProfile]:
    return [profile(model, gpus) for model in _MS[gpus]]


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
