"""Every figure against one computed by hand."""

from dataclasses import fields
from itertools import pairwise
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simulation.results.metrics import Metrics, as_dict, figures, finish_time_fairness, measure, utilisation_series
from simulation.results.outcome import Ending, Usage
from simulation.results.steps import Steps
from tests.simulation.results.outcomes import outcome, record, worked_example


def test_the_worked_example() -> None:
    found = measure(worked_example())
    assert (found.jobs, found.completed, found.preemptions) == (3, 3, 0)
    assert found.avg_jct_s == pytest.approx((100 + 200 + 50) / 3)
    assert (found.median_jct_s, found.p99_jct_s, found.makespan_s) == (100, 200, 200)
    assert found.avg_queue_s == pytest.approx(100 / 3)
    assert (found.median_queue_s, found.p99_queue_s) == (0, 100)
    # Held: 2 GPUs for 50 s, 3 for 50 s, 4 for 100 s, of 4 x 200 GPU-seconds.
    assert found.gpu_utilisation == pytest.approx(650 / 800)
    assert found.held_gpu_h == pytest.approx(650 / 3600)
    assert (found.useful_gpu_h, found.wasted_gpu_h) == (pytest.approx(650 / 3600), pytest.approx(0))
    # Of 150 free GPU-seconds, those of the second half minute lay beside job 3.
    assert found.fragmentation == pytest.approx(50 / 150)
    assert (found.gain_per_gpu_h, found.avg_job_gain_per_gpu_h) == (None, None)


def test_finish_time_fairness_by_hand() -> None:
    # Jobs in the system: 2 until 50 s, 3 until 100 s, 1 until 200 s; so N is 2.5, 1.75 and 3 for jobs 1, 2 and 3.
    example = worked_example()
    assert finish_time_fairness(example) == pytest.approx([100 / (100 * 2 * 2.5 / 4), 200 / (100 * 4 * 1.75 / 4), 1.0])
    found = measure(example)
    assert found.max_rho == pytest.approx(200 / 175)
    assert found.avg_rho == pytest.approx((0.8 + 200 / 175 + 1.0) / 3)
    assert found.unfair_share == pytest.approx(1 / 3)


def test_jobs_that_did_not_finish_have_no_fairness() -> None:
    jobs = [record(n, 0, 0, 10, ending=ending) for n, ending in enumerate(Ending)]
    assert len(finish_time_fairness(outcome(*jobs))) == 1
    assert len(finish_time_fairness(outcome(record(1, 0, 0, 10, run_s=0)))) == 0


def test_a_job_alone_is_treated_fairly_whatever_the_rounding() -> None:
    assert 0.8 - 0.1 > 0.7  # in floating point
    found = measure(outcome(record(1, 0.1, 0.1, 0.8, 4, run_s=0.7)))
    assert found.max_rho == pytest.approx(1)
    assert found.unfair_share == 0


@pytest.mark.parametrize(("jobs", "rank"), [(1, 0), (99, 98), (100, 99), (101, 99), (200, 198)])
def test_p99_is_the_entry_that_muris_script_takes(jobs: int, rank: int) -> None:
    found = measure(outcome(*(record(n, 0, 0, jobs - n) for n in range(jobs))))
    assert found.p99_jct_s == rank + 1  # JCTs are 1, 2, ..., jobs


def test_the_median_of_an_even_number_is_between_the_middle_two() -> None:
    assert measure(outcome(record(1, 0, 0, 10), record(2, 0, 4, 30))).median_jct_s == 20
    assert measure(outcome(record(1, 0, 0, 10), record(2, 0, 4, 30))).median_queue_s == 2


def test_makespan_counts_from_the_traces_zero_and_utilisation_from_the_first_submission() -> None:
    found = measure(outcome(record(1, 100, 100, 200, 4), usage=(Usage(100, 4, 0, 1, 0), Usage(200, 0, 4, 0, 0))))
    assert found.makespan_s == 200
    assert found.gpu_utilisation == 1.0
    assert found.fragmentation is None  # no GPU was ever free


def test_usage_before_its_first_entry_is_none_and_after_the_last_end_does_not_count() -> None:
    usage = (Usage(50, 4, 0, 1, 0), Usage(100, 1, 2, 1, 0))
    found = measure(outcome(record(1, 0, 50, 100, 4), usage=usage))
    assert found.gpu_utilisation == 0.5
    assert found.fragmentation == 0.0


def test_overheads_are_waste() -> None:
    jobs = (record(1, 0, 0, 130, 4, run_s=100, preemptions=2), record(2, 130, 130, 230, 4, preemptions=1))
    found = measure(outcome(*jobs, usage=(Usage(0, 4, 0, 1, 0), Usage(230, 0, 4, 0, 0))))
    assert found.preemptions == 3
    assert found.wasted_gpu_h == pytest.approx(4 * 30 / 3600)


def test_what_rounding_leaves_is_no_waste() -> None:
    """A ratio to it, as `compare` shows, would be 10^14."""
    assert 0.8 - 0.1 > 0.7  # in floating point
    alone = outcome(record(1, 0.1, 0.1, 0.8, 4, run_s=0.7), usage=(Usage(0.1, 4, 0, 1, 0), Usage(0.8, 0, 4, 0, 0)))
    assert measure(alone).wasted_gpu_h == 0


def test_work_that_was_lost_is_waste_and_a_stopped_job_was_worth_its_while() -> None:
    lost = [record(n, 0, 0, 100, run_s=400, ending=e) for n, e in enumerate((Ending.TIME_LIMIT, Ending.FAILED))]
    kept = [record(n + 2, 0, 0, 100, run_s=400, ending=e) for n, e in enumerate((Ending.STOPPED, Ending.ABANDONED))]
    found = measure(outcome(*lost, *kept, usage=(Usage(0, 4, 0, 4, 0), Usage(100, 0, 4, 0, 0))))
    assert found.completed == 0
    assert found.useful_gpu_h == pytest.approx(200 / 3600)
    assert found.wasted_gpu_h == pytest.approx(200 / 3600)


def test_sharing_counts_a_gpu_once_and_can_do_more_than_it_holds() -> None:
    together = [record(n, 0, 0, 100, 4, run_s=80) for n in (1, 2)]
    found = measure(outcome(*together, usage=(Usage(0, 4, 0, 2, 0), Usage(100, 0, 4, 0, 0))))
    assert found.gpu_utilisation == 1.0
    assert found.wasted_gpu_h == pytest.approx(4 * (100 - 160) / 3600)


def test_gain_is_known_of_some_jobs_only() -> None:
    jobs = (record(1, 0, 0, 3600, 2, gain=0.5), record(2, 0, 0, 1800, 1, gain=1.0), record(3, 0, 0, 9000, 1))
    found = measure(outcome(*jobs))
    assert found.gain_per_gpu_h == pytest.approx(1.5 / 2.5)
    assert found.avg_job_gain_per_gpu_h == pytest.approx((0.25 + 2.0) / 2)


def test_without_jobs_counts_are_zero_and_the_rest_has_no_meaning() -> None:
    found = as_dict(measure(outcome()))
    assert {name for name, value in found.items() if value is not None} == {"jobs", "completed", "preemptions"}
    assert (found["jobs"], found["completed"], found["preemptions"]) == (0, 0, 0)


def test_jobs_that_have_not_ended_have_no_jct_and_leave_the_makespan_open() -> None:
    running = record(2, 0, 40, 100, run_s=500, ending=Ending.UNFINISHED)
    waiting = record(3, 0, nan, 100, run_s=500, held_s=0, ending=Ending.UNFINISHED)
    found = measure(outcome(record(1, 0, 0, 40), running, waiting, usage=(Usage(0, 1, 2, 1, 2),)))
    assert (found.jobs, found.completed) == (3, 1)
    assert (found.avg_jct_s, found.median_jct_s, found.p99_jct_s, found.makespan_s) == (40, 40, 40, None)
    assert (found.avg_queue_s, found.p99_queue_s) == (20, 40)  # of the two that started
    assert found.gpu_utilisation == pytest.approx(1 / 4)  # until the end of the simulation at 100 s
    assert found.useful_gpu_h == pytest.approx((40 + 60) / 3600)


def test_without_usage_only_the_jobs_are_measured() -> None:
    found = measure(replace(worked_example(), usage=()))
    assert found.avg_jct_s == pytest.approx(350 / 3)
    assert (found.gpu_utilisation, found.held_gpu_h, found.wasted_gpu_h) == (None, None, None)


def test_unknown_nodes_leave_fragmentation_unknown() -> None:
    example = worked_example()
    blind = tuple(replace(entry, idle_node_gpus=None) for entry in example.usage)
    found = measure(replace(example, usage=blind))
    assert found.fragmentation is None
    assert found.gpu_utilisation == pytest.approx(650 / 800)


def test_utilisation_over_time() -> None:
    edges_s, share = utilisation_series(worked_example(), 4)
    assert edges_s == [0, 50, 100, 150, 200]
    assert share == [0.5, 0.75, 1.0, 1.0]
    edges_s, share = utilisation_series(worked_example(), 1)
    assert share == pytest.approx([650 / 800])
    assert utilisation_series(outcome(), 4) == ([], [])


def test_every_figure_has_a_meaning_and_names_its_unit() -> None:
    assert [figure.name for figure in figures()] == [entry.name for entry in fields(Metrics)]
    endings = {"s": "_s", "GPU h": "_gpu_h", "1/GPU h": "_per_gpu_h"}
    for figure in figures():
        assert figure.text
        assert figure.name.endswith(endings.get(figure.unit, "")), figure


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(-5, 5)), max_size=8),
    st.lists(st.integers(-5, 60), min_size=2, max_size=5, unique=True),
)
def test_steps_sum_like_second_by_second(changes: list[tuple[int, int]], edges: list[int]) -> None:
    steps = Steps.of_changes(changes)
    for from_s, until_s in pairwise(sorted(edges)):
        by_hand = [sum(by for at, by in changes if at <= second) for second in range(from_s, until_s)]
        assert steps.integral(until_s) - steps.integral(from_s) == sum(by_hand)
        assert steps.mean(from_s, until_s) == pytest.approx(sum(by_hand) / len(by_hand))
