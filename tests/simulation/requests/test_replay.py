"""Service times, settings, generated traces, and a whole replay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.requests.replay import RequestReplay
from simulation.requests.settings import RequestReplayError, RequestSettings, ServiceTime, StartTime, service_times
from simulation.requests.trace import Request, RequestTrace, bursty, diurnal, generate, step


def test_service_times() -> None:
    assert ServiceTime.parse("0.25").seconds(Request(0.0, 1000, 100)) == 0.25
    assert ServiceTime.parse("0.1:25").seconds(Request(0.0, 1000, 100)) == pytest.approx(0.1 + 2.5)
    assert ServiceTime.parse("5").seconds(Request(0.0, service_s=2.0)) == 2.0


@pytest.mark.parametrize("text", ["", "fast", "-1", "0", "1:2:3", "nan", "inf", "1:", "0:0"])
def test_service_times_that_make_no_sense(text: str) -> None:
    with pytest.raises(RequestReplayError, match="accepted: "):
        ServiceTime.parse(text)


def test_a_model_is_needed_unless_the_trace_has_times() -> None:
    assert service_times([Request(0.0, service_s=1.0)], None) == [1.0]
    with pytest.raises(RequestReplayError, match="a service-time model is needed"):
        service_times([Request(0.0, service_s=1.0), Request(0.0, 5, 5)], None)
    with pytest.raises(RequestReplayError, match=r"request at 3.000 s \(0 input, 0 output tokens\): 0 s"):
        service_times([Request(3.0)], ServiceTime.parse("1:1"))


@pytest.mark.parametrize("text", ["", "soon", "-1", "60:-1", "60:0.5:1", "60:9", "nan", "1e9"])
def test_start_times_that_make_no_sense(text: str) -> None:
    with pytest.raises(RequestReplayError, match="accepted: "):
        StartTime.parse(text)


def test_start_times() -> None:
    assert StartTime.parse("60") == StartTime(60.0)
    assert StartTime.parse("60:0.5").mean_s == pytest.approx(60 * 2.718281828**0.125)


@pytest.mark.parametrize(
    "wrong",
    [{"concurrency": 0}, {"deadline_s": 0.0}, {"slo_s": 400.0}, {"initial": 65}, {"warmup_s": -1.0}],
)
def test_settings_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(RequestReplayError, match=r"accepted: |warm-up"):
        RequestSettings(**wrong)


def test_generated_rates_and_repeatability() -> None:
    trace = generate(step(2.0, 10.0, 1000.0, 2000.0), 10.0, 3000.0, seed=1)
    inside = sum(1000 <= request.arrival_s < 2000 for request in trace.requests)
    assert inside == pytest.approx(10_000, rel=0.05)
    assert len(trace.requests) - inside == pytest.approx(4000, rel=0.08)
    assert trace == generate(step(2.0, 10.0, 1000.0, 2000.0), 10.0, 3000.0, seed=1)
    assert trace != generate(step(2.0, 10.0, 1000.0, 2000.0), 10.0, 3000.0, seed=2)


def test_diurnal_starts_at_the_trough() -> None:
    rate = diurnal(10.0, 0.5, 3600.0)
    assert (rate(0.0), rate(1800.0)) == (pytest.approx(5.0), pytest.approx(15.0))


@given(st.integers(0, 100), st.lists(st.floats(0, 20_000), max_size=40))
def test_bursts_do_not_depend_on_the_order_of_questions(seed: int, times: list[float]) -> None:
    asked = bursty(2.0, 3.0, 60.0, 300.0, seed)
    answers = {at_s: asked(at_s) for at_s in times}
    again = bursty(2.0, 3.0, 60.0, 300.0, seed)
    assert {at_s: again(at_s) for at_s in sorted(times)} == answers
    assert set(answers.values()) <= {2.0, 6.0}


def test_capacity_is_concurrency_over_the_mean_service_time() -> None:
    trace = RequestTrace((Request(0.0, 0, 100), Request(1.0, 0, 300)))
    replay = RequestReplay.of(trace, ServiceTime.parse("0:10"), RequestSettings(concurrency=8, start=StartTime(45.0)))
    assert replay.capacity.requests_per_s == pytest.approx(8 / 2.0)
    assert (replay.capacity.concurrency, replay.capacity.start_s) == (8, 45.0)


@pytest.mark.parametrize("rule", ["slurm", "dilu", "knative", "target"])
def test_every_rule_follows_a_step(rule: str) -> None:
    trace = generate(step(1.0, 6.0, 600.0, 1800.0), 6.0, 2400.0, seed=3)
    settings = RequestSettings(concurrency=4, start=StartTime(60.0), warmup_s=0.0)
    replay = RequestReplay.of(trace, ServiceTime(constant_s=2.0), settings)
    metrics = replay.measured(rule, {})
    # 6 requests/s of 2 s on replicas of 4 need 3 replicas, 1 request/s one.
    assert metrics.peak_replicas >= 3
    assert metrics.failed == 0
    assert metrics.scale_outs >= 1


def test_requests_must_be_in_order() -> None:
    with pytest.raises(RequestReplayError, match="order"):
        RequestReplay.of(
            RequestTrace((Request(1.0, service_s=1.0), Request(0.0, service_s=1.0))), None, RequestSettings()
        )
