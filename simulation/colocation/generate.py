"""Generated instance events with the distributions of Dilu's large-scale simulation (ASPLOS 2025)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from simulation.colocation.events import Action, InstanceEvent, InstanceTrace
from simulation.colocation.instance import Instance, InstanceKind

_GIB = 1024
_DECIMALS = 4


class InstanceMix(Struct, frozen=True):
    """What is drawn. Shares are of the number of instances; U is the uniform distribution, memory in GiB.

    * training (`training_share`): 2 or 4 GPUs, memory of each one of 25, 30, 35, 40, request U(0.4, 0.8),
      limit max(request + 0.2, U(0.6, 1.0)).
    * llm-inference (`llm_share`): memory U(20, 30) whole, request U(0.4, 0.6), limit U(request + 0.2, 0.8).
    * inference (the rest): memory U(3, 10) whole, request U(0.2, 0.4), limit max(request + 0.2, U(0.3, 0.6)).

    They start in random order, one a second. `inference_deletes` of them, all of either inference kind, are deleted 1
    to 3 min after their start, `training_deletes`, all trainings, after 10 to 15 min. Requests and limits have four
    decimals.

    The instances of either inference kind belong to services of `instances_per_service` instances each in the mean
    (ours: the original does not say), and the instances of one service are alike. Every training is a service of its
    own.
    """

    training_share: float = 0.2
    llm_share: float = 0.2
    inference_deletes: float = 0.6
    training_deletes: float = 0.1
    instances_per_service: float = 4.0


def generate(instances: int, seed: int, mix: InstanceMix | None = None) -> InstanceTrace:
    """Events of so many instances; the same seed gives the same events everywhere."""
    mix = mix or InstanceMix()
    random = np.random.default_rng(seed)
    drawn = _instances(instances, mix, random)
    starting = [drawn[i] for i in random.permutation(len(drawn))]
    events = [InstanceEvent(float(key), Action.START, key, each) for key, each in enumerate(starting)]
    trains = np.array([each.kind is InstanceKind.TRAINING for each in starting], dtype=np.bool_)
    for among, share, shortest_s, longest_s in (
        (np.flatnonzero(~trains), mix.inference_deletes, 60.0, 180.0),
        (np.flatnonzero(trains), mix.training_deletes, 600.0, 900.0),
    ):
        count = min(among.size, round(share * instances))
        chosen = np.sort(random.choice(among, size=count, replace=False))
        lives_s = random.uniform(shortest_s, longest_s, size=count)
        for key, life_s in zip(chosen.tolist(), lives_s.tolist(), strict=True):
            events.append(InstanceEvent(round(key + life_s, 3), Action.DELETE, key, starting[key]))
    return InstanceTrace(tuple(sorted(events, key=lambda event: (event.time_s, event.action, event.key))))


def _instances(count: int, mix: InstanceMix, random: np.random.Generator) -> Sequence[Instance]:
    trainings = min(count, round(count * mix.training_share))
    llms = min(count - trainings, round(count * mix.llm_share))
    drawn = [_training(f"training-{i + 1}", random) for i in range(trainings)]
    for kind, how_many in ((InstanceKind.LLM_INFERENCE, llms), (InstanceKind.INFERENCE, count - trainings - llms)):
        draw = _llm if kind is InstanceKind.LLM_INFERENCE else _inference
        of_kind = max(1, round(how_many / mix.instances_per_service))
        services = [draw(f"{kind}-{i + 1}", random) for i in range(of_kind)]
        drawn += [services[i] for i in random.integers(len(services), size=how_many)]
    return drawn


def _training(name: str, random: np.random.Generator) -> Instance:
    gpus = int(random.choice([2, 4]))
    memory_mib = tuple(_GIB * int(gib) for gib in random.choice([25, 30, 35, 40], size=gpus))
    request = random.uniform(0.4, 0.8)
    limit = max(request + 0.2, random.uniform(0.6, 1.0))
    return _instance(name, InstanceKind.TRAINING, request, limit, memory_mib)


def _llm(name: str, random: np.random.Generator) -> Instance:
    request = random.uniform(0.4, 0.6)
    limit = random.uniform(request + 0.2, 0.8)
    return _instance(name, InstanceKind.LLM_INFERENCE, request, limit, (_GIB * int(random.integers(20, 31)),))


def _inference(name: str, random: np.random.Generator) -> Instance:
    request = random.uniform(0.2, 0.4)
    limit = max(request + 0.2, random.uniform(0.3, 0.6))
    return _instance(name, InstanceKind.INFERENCE, request, limit, (_GIB * int(random.integers(3, 11)),))


def _instance(name: str, kind: InstanceKind, request: float, limit: float, memory_mib: tuple[int, ...]) -> Instance:
    return Instance(name, kind, round(request, _DECIMALS), min(1.0, round(limit, _DECIMALS)), memory_mib)
