"""Traces for tests of Muri's conventions: jobs of the published profile, generated, and small ones by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simulation.results.outcome import JobRecord, TraceOutcome
from simulation.traces.generate import profile
from simulation.traces.trace import StageTimes, Trace, TraceJob

MODELS = ("vgg16", "vgg19", "resnet18", "shufflenet_v2_x1_0", "bert", "gpt2", "a2c", "dqn")


def job(job_id: int, submit_s: float, gpus: int, iterations: float, **fields: Any) -> TraceJob:
    """One-second iterations (1.015 s under the conventions) and an overhead of 10 s, unless a model is named."""
    return TraceJob(job_id, submit_s, gpus, run_s=iterations, iterations=iterations, **fields)


def model_job(job_id: int, model: str, gpus: int, iterations: float, submit_s: float = 0.0) -> TraceJob:
    """A job of the profile of one or eight GPUs."""
    alone = profile(model, 1 if gpus == 1 else 8)
    stages = StageTimes(alone.io_s, alone.gpu_s, alone.net_s)
    run_s = iterations * alone.iteration_s
    return TraceJob(job_id, submit_s, gpus, run_s, iterations, stages, declared_s=run_s, model=model)


def generated(jobs: int, seed: int = 0) -> Trace:
    """Uniform models, GPU counts like those of the published trace, exponential gaps, log-normal work."""
    rng = np.random.default_rng(seed)
    submit_s = np.cumsum(rng.exponential(600.0, jobs))
    counts = rng.choice([1, 2, 4, 8, 16, 32], jobs, p=[0.36, 0.01, 0.28, 0.31, 0.025, 0.015])
    run_s = rng.lognormal(8.5, 1.5, jobs)
    made = []
    for index, (model, gpus) in enumerate(zip(rng.choice(MODELS, jobs), counts.tolist(), strict=True)):
        iterations = float(round(run_s[index] / profile(model, 1).iteration_s)) + 1.0
        base = model_job(index, str(model), gpus, iterations, round(float(submit_s[index]), 3))
        made.append(replace(base, priority=int(rng.integers(0, 2))))
    return Trace.of(made)


def record(outcome: TraceOutcome, job_id: int) -> JobRecord:
    return next(job for job in outcome.jobs if job.job_id == job_id)
