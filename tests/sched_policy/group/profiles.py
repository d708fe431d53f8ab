"""Iteration and stage times of eight models on 1 and 8 GPUs, in ms: iteration, io, gpu, net (Muri's profile)."""

from __future__ import annotations

from sched_policy.group.interleave import Profile

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


def profile(model: str, gpus: int = 1) -> Profile:
    iteration, io, gpu, net = _MS[gpus][model]
    return Profile(iteration / 1e3, io / 1e3, gpu / 1e3, net / 1e3)


def profiles(gpus: int = 1) -> list[Profile]:
    return [profile(model, gpus) for model in _MS[gpus]]
