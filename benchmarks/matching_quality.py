"""How near the fast matcher comes to the exact maximum weight, and how much faster it is; jobs of Muri's models.

`spread` 0: jobs of eight kinds. Otherwise every time of every job is off by up to that share, and no two are alike.
"""

from __future__ import annotations

import json
import time

import click
import numpy as np

from sched_policy.group.rounds import match
from sched_policy.snapshot import Floats
from simulation.muri.matching import efficiencies, match_kinds

# Iteration, io, gpu and net milliseconds on 8 GPUs: vgg16, vgg19, resnet18, shufflenet, bert, gpt2, a2c, dqn.
_MODELS_MS = np.array(
    [
        (214, 82, 75, 66),
        (226, 82, 88, 60),
        (1010, 784, 117, 77),
        (957, 769, 57, 10),
        (192, 0.5, 167, 59),
        (437, 0.6, 419, 49),
        (555, 502, 14, 0.4),
        (509, 435, 8, 0.5),
    ]
)


@click.command()
@click.option("--jobs", default=1000, show_default=True, type=click.IntRange(2, 5000))
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def main(jobs: int, seed: int, as_json: bool) -> None:  # noqa: FBT001  click passes by name
    """Match the same jobs both ways."""
    rng = np.random.default_rng(seed)
    rows = []
    for spread in (0.0, 0.25):
        times_s = (
            _MODELS_MS[rng.integers(0, len(_MODELS_MS), jobs)] / 1e3 * rng.uniform(1 - spread, 1 + spread, (jobs, 4))
        )
        rows.append({"jobs": jobs, "spread": spread, **_compare(times_s)})
    if not as_json:
        for row in rows:
            print(", ".join(f"{name} {value:.6g}" for name, value in row.items()))
    print(json.dumps(rows))


def _compare(times_s: Floats) -> dict[str, float]:
    kinds, kind_of, counts = np.unique(times_s, axis=0, return_inverse=True, return_counts=True)
    weights = _weights(kinds)
    began_s = time.process_time()
    pairs = match_kinds(counts.tolist(), weights)
    fast_s = time.process_time() - began_s
    every = weights[np.ix_(kind_of, kind_of)]
    began_s = time.process_time()
    exact = match(every)
    exact_s = time.process_time() - began_s
    quality = float((pairs * weights).sum()) / float(sum(every[pair] for pair in exact))
    return {"kinds": len(kinds), "quality": quality, "fast_s": fast_s, "exact_s": exact_s, "ratio": exact_s / fast_s}


def _weights(kinds: Floats) -> Floats:
    count = len(kinds)
    groups = np.stack([kinds.repeat(count, axis=0), np.tile(kinds, (count, 1))], axis=1)
    return efficiencies(groups).reshape(count, count)


if __name__ == "__main__":
    main()
