"""In flight and queued against a target, with Ray Serve's delays."""

from inference_gateway.model import Capacity
from inference_gateway.scaling.published import Target, TargetOptions
from tests.inference_gateway.scaling.seconds import Service

FIVE = Capacity(requests_per_s=5.0, concurrency=5, start_s=60.0)  # target: 2 in flight per replica


def service(ready: int, **options: float) -> Service:
    return Service(Target(TargetOptions(**options), FIVE), ready)


def test_up_after_30_s_of_wanting_more() -> None:
    assert service(1).feed([0] * 31, in_flight=6) == [1] * 30 + [3]


def test_down_after_600_s_of_wanting_less() -> None:
    assert service(4).feed([0] * 601, in_flight=2) == [4] * 600 + [1]


def test_a_second_of_wanting_none_starts_the_delay_again() -> None:
    up = service(1, look_back=1)
    up.feed([0] * 29, in_flight=6)
    up.feed([0], in_flight=2)
    assert up.feed([0] * 30, in_flight=6) == [1] * 30
    assert up.second(0, in_flight=6).replicas == 3


def test_from_zero_without_delay() -> None:
    assert service(0).feed([3]) == [2]


def test_without_delays_as_serverlessllm() -> None:
    bare = service(1, look_back=1, up_delay_s=0.0, down_delay_s=0.0)
    for in_flight, queued in ((4, 1), (9, 0), (1, 0), (2, 6)):
        bare.second(0, in_flight, queued)
        assert bare.replicas == -(-(in_flight + queued) // 2)


def test_half_the_way_with_a_factor_and_never_stuck_above() -> None:
    half = service(8, look_back=1, down_delay_s=0.0, down_factor=0.5)
    assert half.feed([0] * 6, in_flight=4) == [5, 4, 3, 2, 2, 2]
