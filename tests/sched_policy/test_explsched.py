"""The explsched policy: what learns most per GPU-second runs first, and only who opted in yields."""

import numpy as np
import pytest
from msgspec.structs import replace

from explsched.errors import PolicyError
from sched_policy import catalog
from sched_policy.model import Direction, Exploration, GpuRequest, Job, JobState, ProgressPoint
from sched_policy.plan import Plan
from sched_policy.utility import estimate
from simulation.primal_dual import Market
from tests.sched_policy.builders import EXPLORING, NOW_S, curve, job, nodes, row, running, snapshot

POLICY = row("explsched", catalog.PolicyOptions(objective="total", quantum_s=100, stop_threshold=0.02))


def ranked(plan: Plan) -> list[int]:
    return [score.job_id for score in plan.scores]


def test_steep_curves_come_before_flat_ones() -> None:
    steep = running(1, "n1", exploration=EXPLORING, points=curve(0.1, 1.0, 200))
    flat = running(2, "n1", exploration=EXPLORING, points=curve(0.9, 1.0, 200))
    assert ranked(POLICY.plan(snapshot(flat, steep))) == [1, 2]


def test_untried_configurations_are_explored_before_known_ones_go_on() -> None:
    known = running(1, "n1", exploration=EXPLORING, points=curve(0.1, 1.0, 1000))
    untried = job(2, exploration=EXPLORING)
    assert ranked(POLICY.plan(snapshot(known, untried))) == [2, 1]


def test_losses_of_different_sweeps_compare() -> None:
    small = running(1, "n1", exploration=EXPLORING, points=curve(0.1, 1.0, 200))
    scaled = tuple(replace(p, value=1000 * p.value) for p in small.points)
    large = running(2, "n1", exploration=replace(EXPLORING, sweep="other"), points=scaled)
    utilities = estimate(snapshot(small, large), 100)
    assert utilities[1].value == pytest.approx(utilities[2].value)


def test_a_metric_to_be_maximised_counts_upwards() -> None:
    falling = running(1, "n1", exploration=EXPLORING, points=curve(0.1, 1.0, 200))
    rising_points = tuple(replace(p, value=-p.value) for p in falling.points)
    accuracy = Exploration(sweep="acc", metric="accuracy", direction=Direction.MAX)
    rising = running(2, "n1", exploration=accuracy, points=rising_points)
    utilities = estimate(snapshot(falling, rising), 100)
    assert utilities[2].value == pytest.approx(utilities[1].value)


def test_two_gpus_for_the_same_gain_are_worth_half() -> None:
    one = running(1, "n1", exploration=EXPLORING, points=curve(0.1, 1.0, 200))
    two = replace(one, job_id=2, request=GpuRequest(2), points=tuple(replace(p, gpu_s=2 * p.gpu_s) for p in one.points))
    utilities = estimate(snapshot(one, two), 100)
    assert utilities[2].value == pytest.approx(utilities[1].value / 2, rel=1e-3)


def full_cluster(**fields: object) -> list[Job]:
    flat = curve(0.5, 0.5, 4000)
    return [running(i, f"n{1 + (i > 4)}", exploration=EXPLORING, points=flat, **fields) for i in range(1, 9)]


def test_a_job_that_opted_in_yields_to_one_worth_more() -> None:
    plan = POLICY.plan(snapshot(*full_cluster(), job(20, exploration=EXPLORING)))
    assert len(plan.preemptions) == 1
    assert "job 20" in plan.preemptions[0].reason


def test_nobody_yields_without_having_opted_in() -> None:
    silent = [replace(j, exploration=Exploration(sweep="digits")) for j in full_cluster()]
    plan = POLICY.plan(snapshot(*silent, job(20, exploration=EXPLORING)))
    assert plan.preemptions == ()
    assert plan.stops == ()


def test_a_started_job_keeps_its_gpus_for_a_quantum() -> None:
    plan = POLICY.plan(snapshot(*full_cluster(ran_s=99.0), job(20, exploration=EXPLORING)))
    assert plan.preemptions == ()


def test_the_quantum_counts_from_the_first_report_not_from_the_start() -> None:
    waiting = job(20, exploration=EXPLORING)
    starting = full_cluster(ran_s=5000.0, first_report_s=None)
    assert POLICY.plan(snapshot(*starting, waiting)).preemptions == ()
    just_begun = full_cluster(ran_s=5000.0, first_report_s=NOW_S - 99)
    assert POLICY.plan(snapshot(*just_begun, waiting)).preemptions == ()


def test_no_more_victims_than_the_gang_needs_and_none_if_it_cannot_fit() -> None:
    fits = job(20, exploration=EXPLORING, request=GpuRequest.on_each(1, 3))
    assert len(POLICY.plan(snapshot(*full_cluster(), fits)).preemptions) == 3
    too_big = job(21, exploration=EXPLORING, request=GpuRequest.on_each(1, 5))
    assert POLICY.plan(snapshot(*full_cluster(), too_big)).preemptions == ()


def test_equal_jobs_do_not_swap() -> None:
    jobs = full_cluster()
    twin = job(20, exploration=EXPLORING, points=curve(0.5, 0.5, 4000))
    assert POLICY.plan(snapshot(*jobs, twin)).preemptions == ()


def test_jobs_that_learn_next_to_nothing_do_not_swap_either() -> None:
    best = running(9, "n2", exploration=EXPLORING, points=curve(0.1, 1.0, 200))
    worthless = [replace(j, points=curve(0.9, 0.2, 400_000)) for j in full_cluster()[:7]]
    twice_as_much = job(20, exploration=EXPLORING, points=curve(0.7, 0.2, 400_000))
    snap = snapshot(best, *worthless, twice_as_much)
    value = {score.job_id: score.value for score in POLICY.plan(snap).scores}
    assert value[20] > 1.5 * value[1] > 0
    assert POLICY.plan(snap).preemptions == ()


@pytest.mark.parametrize("leaving", [{"asked_to_leave": True}, {"state": JobState.COMPLETING}])
def test_room_that_is_being_made_is_not_asked_for_twice(leaving: dict[str, object]) -> None:
    first, *others = full_cluster()
    leaver = replace(first, **leaving)
    waiting = [job(20, exploration=EXPLORING), job(21, exploration=EXPLORING)]
    assert POLICY.plan(snapshot(leaver, *others, waiting[0])).preemptions == ()
    assert len(POLICY.plan(snapshot(leaver, *others, *waiting)).preemptions) == 1


def test_free_gpus_are_used_before_anybody_yields() -> None:
    plan = POLICY.plan(snapshot(*full_cluster()[:7], job(20, exploration=EXPLORING)))
    assert [start.job_id for start in plan.starts] == [20]
    assert plan.preemptions == ()


@pytest.mark.parametrize(
    "values",
    [(*range(9, 1, -1), 1e160), (9, 8, 1.7e308), (1.7e308, 1.0, -1.7e308), (5e-324, 0.0, 1e160, *[0.0] * 6)],
)
@pytest.mark.parametrize("direction", Direction)
def test_no_values_of_a_training_keep_others_from_being_ranked(values: tuple[float, ...], direction: Direction) -> None:
    points = tuple(ProgressPoint(at, 100.0 * at, value) for at, value in enumerate(values, 1))
    strange = running(1, "n1", user="eve", exploration=Exploration(direction=direction), points=points)
    scores = POLICY.plan(snapshot(strange, *full_cluster()[1:], *(job(i, user="bob") for i in range(20, 28)))).scores
    assert np.isfinite([score.value for score in scores]).all()


def test_a_training_that_diverges_keeps_no_others_from_moving() -> None:
    def plan(last: float) -> Plan:
        points = (*curve(0.1, 1.0, 200), ProgressPoint(13, 250.0, last))
        diverged = running(1, "n1", user="eve", exploration=Exploration(checkpoint_signal="USR1"), points=points)
        steep = [replace(one, points=curve(0.1, 1.0, 200)) for one in full_cluster()[1:4]]
        waiting = [job(i, user="bob") for i in range(20, 25)]
        return POLICY.plan(snapshot(diverged, *steep, *full_cluster()[4:], *waiting))

    assert plan(1e99).preemptions
    assert plan(1e160).preemptions == plan(1e99).preemptions


def test_silent_jobs_are_spread_among_the_reporting_ones() -> None:
    reporting = [running(i, "n1", exploration=EXPLORING, points=curve(0.1 * i, 1.0, 200)) for i in (1, 2, 3, 4)]
    silent = [job(i, time_limit_s=100.0 * i) for i in (11, 12)]
    order = ranked(POLICY.plan(snapshot(*reporting, *silent)))
    assert order.index(11) < order.index(12)
    assert 0 < order.index(11) < len(order) - 1


def test_price_rises_from_low_to_high() -> None:
    market = Market.of([1.0, 8.0], capacity=8)
    assert market.price(0) == pytest.approx(market.low)
    assert market.price(8) == market.price(80) == pytest.approx(8.0)
    assert market.price(2) < market.price(4) < market.price(6)
    assert market.payoff(8.0, gpus=2, reserved_gpus=0) > 0 > market.payoff(1.0, gpus=2, reserved_gpus=7)


def test_low_payoff_gets_no_promise() -> None:
    ends_soon = [running(i, f"n{i}", gpus=4, ran_s=3000) for i in (1, 2)]
    rich = running(3, "n3", exploration=EXPLORING, points=curve(0.1, 2.0, 200))
    poor = job(4, exploration=EXPLORING, points=curve(0.99, 0.3, 4000), request=GpuRequest.on_each(2, 4))
    policy = replace(POLICY, preempt=None)
    promised = policy.plan(snapshot(*ends_soon, rich, poor, on=nodes(3)))
    assert [r.job_id for r in replace(policy, admission=None).plan(snapshot(*ends_soon, rich, poor)).reservations] == [
        4
    ]
    market_full = [running(i, f"n{i}", gpus=4, time_limit_s=9000, ran_s=1) for i in (5, 6)]
    crowded = snapshot(*ends_soon, *market_full, rich, poor, on=nodes(6))
    assert promised.reservations == () or promised.reservations[0].start_s >= NOW_S
    assert all(r.job_id != 4 for r in policy.plan(crowded).reservations)


def test_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(PolicyError, match=r"explshed.*did you mean 'explsched'.*known: .*fifo.*explsched"):
        catalog.build("explshed")


@pytest.mark.parametrize("name", catalog.POLICIES.names())
def test_every_policy_plans_an_empty_cluster(name: str) -> None:
    assert catalog.build(name).plan(snapshot()) == Plan()


def test_srsf_prefers_little_remaining_service() -> None:
    jobs = [job(1, gpus=4, time_limit_s=100), job(2, gpus=1, time_limit_s=300), job(3, time_limit_s=None)]
    assert ranked(catalog.build("srsf").plan(snapshot(*jobs))) == [2, 1, 3]


def test_srsf_uses_reported_speed() -> None:
    points = (ProgressPoint(10, 10.0, 1.0), ProgressPoint(90, 90.0, 0.5))
    almost_done = running(1, "n1", total_steps=100, points=points, exploration=EXPLORING)
    assert ranked(catalog.build("srsf").plan(snapshot(job(2, time_limit_s=60), almost_done))) == [1, 2]
