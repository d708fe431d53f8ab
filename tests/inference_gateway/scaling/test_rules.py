"""What holds for every rule: bounds, options, capacity."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_gateway.model import Capacity, Decision, Observation
from inference_gateway.scaling.rules import DEFAULT, BoundedRule, Bounds, ScalingError, bounded, build, rules
from tests.inference_gateway.scaling.seconds import Service

CAPACITY = Capacity(requests_per_s=2.0, concurrency=4, start_s=20.0)
SECOND = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(rules())),
    seconds=st.lists(SECOND, max_size=150),
    least=st.integers(0, 3),
    more=st.integers(0, 6),
    max_pending=st.integers(1, 4),
)
def test_never_outside_the_bounds(
    name: str, seconds: list[tuple[int, int, int]], least: int, more: int, max_pending: int
) -> None:
    bounds = Bounds(least, max(1, least + more), max_pending)
    service = Service(BoundedRule(build(name, {}, CAPACITY), bounds), ready=least, start_s=20)
    for arrivals, in_flight, queued in seconds:
        decision = service.second(arrivals, in_flight, queued)
        assert bounds.minimum <= decision.replicas <= bounds.maximum
        assert len(service.starting) <= bounds.max_pending
        assert decision.reason


@pytest.mark.parametrize(
    ("wanted", "ready", "starting", "replicas", "why"),
    [
        (3, 2, 0, 3, None),
        (0, 2, 0, 1, "min 1"),
        (9, 2, 0, 4, "max_pending 2"),
        (9, 5, 0, 6, "max 6"),
        (5, 1, 3, 4, "max_pending 2"),  # three are starting already: none is cancelled, none is added
        (2, 1, 3, 2, None),
    ],
)
def test_bounds_say_what_held_a_decision_back(
    wanted: int, ready: int, starting: int, replicas: int, why: str | None
) -> None:
    seen = Observation(1.0, 0, 0, 0, ready, starting)
    decision = bounded(Decision(wanted, "because"), seen, Bounds(1, 6, 2))
    assert decision.replicas == replicas
    assert decision.reason == "because" if why is None else why in decision.reason


@pytest.mark.parametrize("wanted", [3, 4])
def test_what_is_just_allowed_is_not_held_back(wanted: int) -> None:
    seen = Observation(1.0, 0, 0, 0, 2, 0)
    assert bounded(Decision(wanted, "because"), seen, Bounds(3, 4, 2)) == Decision(wanted, "because")


def test_a_bounded_rule_passes_on_what_was_measured() -> None:
    rule = BoundedRule(build("target", {"utilization": 1.0, "up_delay_s": 0}, CAPACITY), Bounds(0, 8, 8))
    rule.calibrate(Capacity(2.0, 1, 20.0))
    assert rule.decide(Observation(1.0, 0, 5, 0, 1, 0)).replicas == 5
    assert rule.name == "target"


def test_the_minimum_is_reached_in_steps() -> None:
    decision = bounded(Decision(0, "idle"), Observation(1.0, 0, 0, 0, 0, 0), Bounds(4, 8, 3))
    assert decision.replicas == 3


@pytest.mark.parametrize("bad", [(-1, 8, 8), (3, 2, 8), (0, 0, 8), (1, 8, 0)])
def test_bounds_that_make_no_sense(bad: tuple[int, int, int]) -> None:
    with pytest.raises(ScalingError, match="accepted"):
        Bounds(*bad)


def test_the_default_rule_exists() -> None:
    assert build(DEFAULT, {}, CAPACITY).name == DEFAULT


@pytest.mark.parametrize("name", sorted(rules()))
def test_every_rule_has_a_target_to_sweep_and_describes_its_options(name: str) -> None:
    build(name, {"utilization": "0.8"}, CAPACITY)
    assert "utilization=" in rules()[name].described()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("slrum", {}, r"'slrum' \(nearest: slurm\), accepted are slurm, dilu, knative, target"),
        ("dilu", {"windw": 3}, r"dilu: unknown option 'windw' \(nearest: window\)"),
        ("dilu", {"window": "many"}, "option window: found 'many'"),
        ("dilu", {"window": 0}, "option window: found 0"),
        ("knative", {"utilization": "nan"}, "option utilization: found 'nan'"),
        ("knative", {"metric": "cpu"}, "option metric: found 'cpu'"),
        ("slurm", {"in_margin": -1}, "option in_margin: found -1"),
        ("target", {"up_delay_s": float("inf")}, "option up_delay_s: found inf"),
    ],
)
def test_wrong_names_and_options(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ScalingError, match=message):
        build(name, options, CAPACITY)


@pytest.mark.parametrize("name", sorted(rules()))
def test_a_larger_capacity_needs_fewer_replicas(name: str) -> None:
    few = Service(build(name, {}, Capacity(100.0, 200, 20.0)), ready=1)
    many = Service(build(name, {}, CAPACITY), ready=1)
    for service in (few, many):
        service.feed([20] * 300, in_flight=40)
    assert few.replicas < many.replicas
