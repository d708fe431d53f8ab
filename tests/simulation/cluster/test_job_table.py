"""The life of a job in the table: what a run, a preemption and a restart leave behind."""

from sched_policy.model import JobState, NodeGpus
from simulation.cluster.job_table import JobPhase, JobTable
from simulation.cluster.settings import Estimates, Settings
from simulation.traces.trace import TraceJob

HELD = (NodeGpus("n1", 2),)


def test_a_preempted_job_keeps_its_work_and_pays_for_the_restart() -> None:
    trace = TraceJob(7, submit_s=10.0, gpus=2, run_s=1000.0)
    table = JobTable([trace], Settings(estimates=Estimates.parse("exact")))
    table.submit(0, trace)
    waiting = table.job(0, trace, (), 4)
    assert (waiting.state, waiting.start_s, waiting.queued_s, waiting.expected_s) == (
        JobState.PENDING,
        None,
        10.0,
        1000.0,
    )

    table.start(0, 100.0, restart_s=30.0)
    table.save(0, 400.0)
    leaving = table.job(0, trace, HELD, 4)
    assert (leaving.state, leaving.start_s, leaving.asked_to_leave) == (JobState.RUNNING, 100.0, True)
    assert float(table.done_s[0]) == 300.0, "a first start loads no checkpoint"

    table.release(0, 420.0)
    table.requeue(0, 420.0, cost_s=50.0)
    back = table.job(0, trace, (), 4)
    assert (back.state, back.start_s, back.queued_s, back.restarts) == (JobState.PENDING, None, 420.0, 1)
    assert (back.earlier_s, back.expected_s) == (320.0, 1050.0)
    assert float(table.held_gpu_s[0]) == 640.0

    table.start(0, 500.0, restart_s=30.0)
    table.advance(0, 600.0)
    assert float(table.done_s[0]) == 370.0, "30 s of the second run load the checkpoint"
    assert float(table.first_start_s[0]) == 100.0
    assert table.end_s(0) == 600.0 + 630.0
    table.end(0)
    assert table.phase[0] == JobPhase.ENDED
