"""What a job says to the daemon in its Slurm comment, as the policies' model has it.

The word in the comment is `explsched.job_options.comment`'s; this module gives its values their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

from explsched.errors import ExplschedError
from explsched.job_options import comment, values
from explsched.job_options.table import (
    CHECKPOINT,
    DIRECTION,
    EARLY_STOP,
    ELASTIC,
    JOB_CLASS,
    LIMIT,
    METRIC,
    PARAMS,
    REQUEST,
    SCHEDULED,
    SHARE,
    SHARING,
    STAGES,
    SWEEP,
    Topic,
)
from explsched.parameters import of_pairs
from sched_policy.model import Direction, Elastic, Exploration, StageProfile

_LEARNING = frozenset(option.name for option in SCHEDULED if option.topic is Topic.LEARNING)
_SHARING = frozenset(option.name for option in SHARING)
_GUARANTEED, _ = JOB_CLASS.kind.choices


class GpuSharing(Struct, frozen=True):
    """How the job's kernels share a GPU: its class, and permille of the GPU's time. None is what was not given."""

    share: str | None = None
    request_permille: int | None = None
    limit_permille: int | None = None


class JobOptions(Struct, frozen=True):
    """What one job said. `exploration` and `sharing` are None if it said nothing about them.

    `guaranteed` is its class (AntMan), true unless it said otherwise. `elastic` are the sizes at which it can run.
    `stages` is where its iterations spend their time (Muri).
    """

    exploration: Exploration | None = None
    guaranteed: bool = True
    sharing: GpuSharing | None = None
    elastic: Elastic | None = None
    stages: StageProfile | None = None


class JobOptionError(ExplschedError):
    """The job's comment has an `explsched:` word that cannot be understood."""


@lru_cache(maxsize=20_000)  # of 13 KB each where somebody wants them large
def parse(text: str) -> JobOptions | None:
    """The job's options; None if its comment has no `explsched:` word. Raises `JobOptionError`."""
    try:
        given = comment.read(text)
    except ValueError as error:
        raise JobOptionError(str(error)) from error
    if given is None:
        return None
    return JobOptions(
        exploration=_exploration(given) if not given or given.keys() & _LEARNING else None,
        guaranteed=given.get(JOB_CLASS.name, _GUARANTEED) == _GUARANTEED,
        sharing=_sharing(given) if given.keys() & _SHARING else None,
        elastic=Elastic(*values.sizes(given[ELASTIC.name])) if ELASTIC.name in given else None,
        stages=stage_profile(given[STAGES.name]) if STAGES.name in given else None,
    )


def _exploration(given: Mapping[str, str]) -> Exploration:
    return Exploration(
        sweep=given.get(SWEEP.name),
        metric=given.get(METRIC.name, "loss"),
        direction=Direction(given.get(DIRECTION.name, "min")),
        checkpoint_signal=given.get(CHECKPOINT.name),
        may_stop=given.get(EARLY_STOP.name) == "1",
        params=tuple(sorted(of_pairs(given[PARAMS.name]).items())) if PARAMS.name in given else (),
    )


def _sharing(given: Mapping[str, str]) -> GpuSharing:
    request, limit = given.get(REQUEST.name), given.get(LIMIT.name)
    return GpuSharing(
        given.get(SHARE.name),
        None if request is None else values.permille(request),
        None if limit is None else values.permille(limit),
    )


def stage_profile(text: str) -> StageProfile:
    """What the option `stages` says, and what `sxrun --measure-stages` reports. Raises ValueError."""
    iteration_ms, io_ms, gpu_ms, net_ms = values.stages_ms(text)
    return StageProfile(iteration_ms / 1000, io_ms / 1000, gpu_ms / 1000, net_ms / 1000)
