"""A job while it is replayed, with the constants that Muri's simulator attaches to it."""

from __future__ import annotations

from math import inf

from msgspec import Struct

from sched_policy.model import StageProfile
from simulation.traces.trace import TraceJob

ITERATION_FACTOR = 1.015  # every iteration takes this much longer than the trace says, under every policy

# Seconds of overhead for 1, 2, 4, 8, 16, 32 GPUs; charged again at every event, see `loop.advance`.
_SIZES = (1, 2, 4, 8, 16, 32)
_OVERHEAD_S = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
_UNKNOWN_OVERHEAD_S = 10


def overhead_s(model: str, gpus: int) -> int:
    """Restart overhead in seconds; 10 for a model or a number of GPUs that the table does not have."""
    if model not in _OVERHEAD_S or gpus not in _SIZES:
        return _UNKNOWN_OVERHEAD_S
    return _OVERHEAD_S[model][_SIZES.index(gpus)]


class MuriJob(Struct, eq=False):
    """One job and how far it has come.

    Attributes:
        index: position in the trace, ordered by submission.
        trace: the job as the trace has it.
        gpus: GPUs of its gang.
        iteration_s: seconds of one iteration alone, the factor 1.015 included.
        profile: iteration and stage times alone.
        overhead_s: its own overhead.
        left: iterations left.
        pace_s: seconds of one iteration now, in its group.
        drag_s: overhead that is charged to it now, that of its whole group.
        executed_s: time it has held GPUs.
        key: what its policy sorts by.
        running: whether it holds GPUs.
        chosen_at: number of the event that last chose it to run.
        start_s: when it first ran; meaningful once it ran.
        ever_ran: whether it ever did.
        end_s: when it ended, infinity until then.
        preemptions: how often it lost its GPUs.

    """

    index: int
    trace: TraceJob
    gpus: int
    iteration_s: float
    profile: StageProfile
    overhead_s: int
    left: float
    pace_s: float
    drag_s: int
    executed_s: float = 0.0
    key: float = 0.0
    running: bool = False
    chosen_at: int = -1
    start_s: float = 0.0
    ever_ran: bool = False
    end_s: float = inf
    preemptions: int = 0

    @classmethod
    def of(cls, index: int, job: TraceJob) -> MuriJob:
        """The job before it starts.

        A trace without iteration counts is taken as one iteration per job. Rounding to nanoseconds undoes the
        noise of dividing the run time by the iterations: equal jobs must have exactly equal keys.
        """
        iteration_s = round(job.iteration_s * 1000.0, 6) * ITERATION_FACTOR / 1000.0
        overhead = overhead_s(job.model, job.gpus)
        left = float(job.iterations) if job.iterations > 0 else 1.0
        profile = _profile(job, iteration_s)
        return cls(index, job, job.gpus, iteration_s, profile, overhead, left, iteration_s, overhead)


def _profile(job: TraceJob, iteration_s: float) -> StageProfile:
    """A job without stage times is all computation."""
    if job.stages is None:
        return StageProfile(iteration_s, 0.0, iteration_s, 0.0)
    return StageProfile(iteration_s, job.stages.io_s, job.stages.gpu_s, job.stages.net_s)
