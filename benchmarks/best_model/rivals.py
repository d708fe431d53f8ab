"""The schedulers of Syne Tune on the same sweeps, as they are, in an environment of their own.

They are compared by the area under the normalised regret over GPU-hours: one number for a whole sweep, which asks how
good the best model is at each moment, not only when it is within 1 %.
"""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from zlib import crc32

from benchmarks.best_model.drawn import DrawnSweep, regret_area
from benchmarks.best_model.simulated import Reached
from benchmarks.best_model.small_cluster import CHECKPOINT_S, RESTART_S
from explsched.errors import ExplschedError
from sched_policy.model import Parameter

NAMES = ("asha-stopping", "asha-promotion", "pasha", "mobster", "hyper-tune", "dyhpo")
"""As `syne_tune_arm` names them."""

BY_MODEL = frozenset({"mobster", "hyper-tune", "dyhpo"})
"""Those that model what hyper-parameters are worth."""

INSTALL = "pip install 'syne-tune[gpsearchers,blackbox-repository]==0.13.0'"
"""The last release with MOBSTER, Hyper-Tune and DyHPO."""

ETA = 3
LEAST = 1 / 27
"""The first rung, as a share of a training."""

_PROGRAM = Path(__file__).with_name("syne_tune_arm.py")
_LONGEST_S = 3600.0


class RivalsError(ExplschedError):
    """Syne Tune cannot be run, or not on this sweep."""


def check(python: Path) -> None:
    """Raises `RivalsError` unless this Python has Syne Tune as it is wanted."""
    wanted = "from syne_tune.optimizer.baselines import DyHPO, MOBSTER; import autograd, xgboost"
    try:
        subprocess.run([python, "-c", wanted], check=True, capture_output=True, text=True)
    except OSError as error:
        raise RivalsError(
            f"--rivals {python}: {error.strerror}; accepted is a Python with Syne Tune: {INSTALL}"
        ) from error
    except subprocess.CalledProcessError as error:
        why = error.stderr.strip().splitlines()[-1:]
        raise RivalsError(f"--rivals {python}: {' '.join(why)}; it needs Syne Tune: {INSTALL}") from error


def configurations(scheduler: str, sweep: DrawnSweep) -> list[dict[str, Parameter]]:
    """What a scheduler is told of each training, different for each: Syne Tune knows a training by nothing else.

    Where the hyper-parameters are unknown or those of several trainings are equal, it is the training's number instead:
    ASHA and PASHA start them in the drawn order and never look at it. The others would learn from such a number, to
    their own harm: for them raises `RivalsError`.
    """
    known = [dict(curve.params) for curve in sweep.curves]
    if len({json.dumps(params, sort_keys=True) for params in known}) == len(known):
        return known
    if scheduler in BY_MODEL:
        raise RivalsError(
            f"{scheduler} on {sweep.task}: it models hyper-parameters, and those known do not tell the trainings apart"
        )
    return [{"training": row} for row in range(len(known))]


def run(python: Path, scheduler: str, sweep: DrawnSweep, gpus: int) -> Reached:
    """One scheduler on one sweep. Raises `RivalsError`."""
    most = max(len(curve.values) for curve in sweep.curves)
    told = {
        "scheduler": scheduler,
        "seed": crc32(sweep.curves[0].values.tobytes()) % 2**31,  # another one for each draw
        "gpus": gpus,
        "restart_s": RESTART_S,
        "checkpoint_s": CHECKPOINT_S,
        "eta": ETA,
        "least": max(1, math.ceil(LEAST * most)),
        "most": most,
        "until_s": 2 * sweep.work_s / gpus,
        "times_s": [curve.times_s.tolist() for curve in sweep.curves],
        "values": [curve.values.tolist() for curve in sweep.curves],
        "params": configurations(scheduler, sweep),
    }
    try:
        done = subprocess.run(
            [python, _PROGRAM], input=json.dumps(told), capture_output=True, text=True, check=True, timeout=_LONGEST_S
        )
    except subprocess.CalledProcessError as error:
        raise RivalsError(f"{scheduler} on {sweep.task}: {' '.join(error.stderr.strip().splitlines()[-1:])}") from error
    answer = json.loads(done.stdout)
    good = ((at_s, gpu_s) for at_s, gpu_s, value in answer["reports"] if value <= sweep.good_enough)
    reached_s, reached_gpu_s = next(good, (math.inf, math.inf))
    area = regret_area([(gpu_s, value) for _, gpu_s, value in answer["reports"]], sweep)
    return Reached(sweep.task, reached_s, reached_gpu_s, answer["gpu_s"], answer["end_s"], area)
