"""What a site may set about policies."""

from __future__ import annotations

from msgspec import Struct

OBJECTIVES = ("best", "total")
"""What the `explsched` policy is after: each sweep's best model, or the sum of all improvements (as published)."""

SWEEP_STRATEGIES = ("adaptive", "asha", "hyperband", "median-stop")
"""Who decides inside a sweep under the objective `best`."""

SILENT_ORDERS = ("srsf", "fifo")
"""Orders for jobs that report nothing."""


class PolicyOptions(Struct, frozen=True):
    """What a site may set about any policy; a policy uses what applies to it.

    Attributes:
        reservation_depth: blocked jobs that are promised a start; None takes the policy's own.
        quantum_s: how far ahead utility looks, how long a started job is left alone, and how long a fair slice is.
        preempt_margin: how many times a victim's score the score of the job that displaces it must be.
        most_preemptions: preemptions per pass at most.
        stop_threshold: share of a sweep's known improvement below which a job may be stopped; 0 never stops.
        stop_leader_threshold: the same for a job that may become the best of its sweep; 0 never stops it.
        stop_least_share: share of its steps a job does before it may be stopped.
        starvation: a waiting job counts as new after this many times its own run time (tiresias); 0 never.
        resize_restart_s: what a restart costs an elastic job, in seconds of its time, where nothing has been measured.
        resize_gain: a running job is resized only if that saves this many times what the restart costs.
        resize_lead_s: an elastic job that runs smaller than it could is asked to save so long before its time limit.
        las_limits_gpu_s: attained service at which a job falls into the next queue (tiresias, muri-l).
        objective: what `explsched` is after, `best` or `total`.
        sweep_strategy: who decides inside a sweep, one of `SWEEP_STRATEGIES`.
        silent_order: how jobs that report nothing are ranked, `srsf` or `fifo`.

    """

    reservation_depth: int | None = None
    quantum_s: float = 600.0
    preempt_margin: float = 1.5
    most_preemptions: int = 8
    stop_threshold: float = 0.05
    stop_leader_threshold: float = 0.0
    stop_least_share: float = 0.1
    starvation: float = 0.0
    resize_restart_s: float = 60.0
    resize_gain: float = 3.0
    resize_lead_s: float = 180.0
    las_limits_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    silent_order: str = "srsf"
    objective: str = "total"
    sweep_strategy: str = "adaptive"
