"""Preemption where jobs share GPUs, or make room already."""

from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.model import Exploration, Job, NodeGpus
from tests.sched_policy.builders import job, nodes, running, snapshot

CONSENT = Exploration(checkpoint_signal="USR1")


def long_job(job_id: int, gpu: int) -> Job:
    return running(
        job_id, "n1", allocation=(NodeGpus("n1", 1, (gpu,)),), exploration=CONSENT, ran_s=2000.0, time_limit_s=1e6
    )


def preempted(*jobs: Job, gpus: int = 2) -> list[int]:
    made = checked_plan(catalog.build("srsf"), snapshot(*jobs, on=nodes(1, gpus)))
    return [preemption.job_id for preemption in made.preemptions]


def test_a_job_that_shares_its_gpu_is_not_displaced_for_a_gpu() -> None:
    short = job(9, time_limit_s=60.0)
    assert preempted(long_job(1, 0), long_job(2, 0), long_job(3, 1), short) == [3]
    assert preempted(long_job(1, 0), long_job(2, 0), long_job(3, 1), long_job(4, 1), short) == []


def test_a_job_that_makes_room_already_is_not_asked_again() -> None:
    leaves = replace(long_job(1, 0), asked_to_leave=True)
    first, second = (job(number, time_limit_s=60.0) for number in (8, 9))
    assert preempted(leaves, first, second, gpus=1) == []
    assert preempted(replace(leaves, asked_to_leave=False), first, second, gpus=1) == [1]
