"""Which replicas to start, cancel and drain."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_gateway.control.moves import ClassifiedReplicas, Moves, classify, moves
from inference_gateway.control.replica import LIVE, Phase, Replica
from inference_gateway.control.state import Attempts

NOW_S = 1000.0


def replica(name: str, phase: Phase = Phase.SERVING, **fields: object) -> Replica:
    base = Replica("chat", name, "g1", phase, NOW_S, NOW_S)
    return replace(base, **fields)


def names(found: tuple[tuple[Replica, str], ...]) -> list[str]:
    return [one.name for one, _reason in found]


def sorted_out(*replicas: Replica) -> ClassifiedReplicas:
    return classify(replicas, "g1", start_s=60, drain_s=60, now_s=NOW_S)


def test_replicas_are_counted_by_phase_and_time_left() -> None:
    found = sorted_out(
        replica("a"),
        replica("b", Phase.PENDING),
        replica("c", Phase.SUBMITTING),
        replica("d", ends_s=NOW_S + 100, limit_s=3600.0),
        replica("e", generation="g0"),
        replica("f", Phase.DRAINING),
        replica("g", Phase.ENDING),
        replica("h", Phase.DRAINING, generation="g0"),
    )
    assert found.present == 3
    assert [one.name for one in found.serving] == ["a"]
    assert [one.name for one in found.coming] == ["b", "c"]
    assert [one.name for one in found.expiring] == ["d", "e"]
    assert [one.name for one in found.leaving] == ["f", "g", "h"]


def test_expiring_replicas_are_replaced_before_they_leave() -> None:
    old = replica("old", ends_s=NOW_S + 100, limit_s=3600.0)
    assert moves(sorted_out(old), 1, 9, {}) == Moves(start=1)
    assert moves(sorted_out(old, replica("new", Phase.STARTING)), 1, 9, {}) == Moves()
    assert names(moves(sorted_out(old, replica("new")), 1, 9, {}).drain) == ["old"]


@pytest.mark.parametrize(("left_s", "limit_s", "expires"), [
    (119.0, 3600.0, True), (120.0, 3600.0, False),
    (29.0, 60.0, True), (30.0, 60.0, False),
])  # fmt: skip
def test_a_replica_expires_in_time_for_a_successor_but_not_in_its_first_half(
    left_s: float, limit_s: float, *, expires: bool
) -> None:
    found = sorted_out(replica("a", ends_s=NOW_S + left_s, limit_s=limit_s))
    assert bool(found.expiring) == expires


def test_without_demand_replicas_of_an_earlier_configuration_leave_too() -> None:
    done = moves(
        sorted_out(replica("old", generation="g0"), replica("coming", Phase.STARTING, generation="g0")), 0, 9, {}
    )
    assert (names(done.drain), names(done.cancel), done.start) == (["old"], ["coming"], 0)


def test_the_replica_that_ends_first_leaves_first() -> None:
    olds = [replica(f"old{left}", ends_s=NOW_S + left, limit_s=3600.0) for left in (90, 30, 60)]
    assert names(moves(sorted_out(*olds, replica("new")), 3, 0, {}).drain) == ["old30"]


def test_pending_leave_before_starting_before_serving_and_burst_before_others() -> None:
    found = sorted_out(
        replica("serving"),
        replica("burst", burst=True),
        replica("a-starting", Phase.STARTING),
        replica("pending", Phase.PENDING),
        replica("pending-burst", Phase.PENDING, burst=True),
    )
    for wanted, cancelled, drained in (
        (4, ["pending-burst"], []),
        (2, ["pending-burst", "pending", "a-starting"], []),
        (1, ["pending-burst", "pending", "a-starting"], ["burst"]),
        (0, ["pending-burst", "pending", "a-starting"], ["burst", "serving"]),
    ):
        done = moves(found, wanted, 9, {})
        assert (names(done.cancel), names(done.drain)) == (cancelled, drained)


def test_a_submission_under_way_counts_as_a_replica() -> None:
    found = sorted_out(replica("a"), replica("b"), replica("c", Phase.SUBMITTING))
    assert names(moves(found, 2, 9, {}).drain) == []


def test_the_least_loaded_leaves_first_then_the_one_that_ends_first() -> None:
    found = sorted_out(replica("a"), replica("b"), replica("c", ends_s=NOW_S + 9999, limit_s=20000.0))
    assert names(moves(found, 2, 9, {"a": 3, "b": 1, "c": 2}).drain) == ["b"]
    assert names(moves(found, 2, 9, {}).drain) == ["c"]


@given(
    st.lists(
        st.builds(
            lambda number, phase, burst, generation, left_s: replica(
                f"r{number}",
                phase,
                burst=burst,
                generation=generation,
                ends_s=None if left_s is None else NOW_S + left_s,
                limit_s=None if left_s is None else 3600.0,
            ),
            st.integers(0, 10**6),
            st.sampled_from(list(Phase)),
            st.booleans(),
            st.sampled_from(["g1", "g0"]),
            st.one_of(st.none(), st.floats(0, 3600)),
        ),
        max_size=20,
        unique_by=lambda one: one.name,
    ),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_moves_reach_the_wanted_number_and_never_fall_below(have: list[Replica], wanted: int, startable: int) -> None:
    found = sorted_out(*have)
    done = moves(found, wanted, startable, {})
    touched = names(done.cancel) + names(done.drain)
    assert len(touched) == len(set(touched))
    assert set(touched) <= {one.name for one in have if one.phase in LIVE}
    assert 0 <= done.start <= startable
    left = found.present + done.start - sum(one.name in touched for one in (*found.serving, *found.coming))
    assert left >= min(wanted, found.present + startable)
    # As many serve afterwards as are wanted, or as served before.
    serving = [*found.serving, *(one for one in found.expiring if one.phase is Phase.SERVING)]
    still = sum(one.name not in touched for one in serving)
    assert still >= min(wanted, len(serving)) - len(found.coming)


class TestAttempts:
    def test_failures_of_replicas_started_together_count_once(self) -> None:
        attempts = Attempts().failed(0, 10)
        for _ in range(7):
            attempts = attempts.failed(0, 11)
        assert attempts.failures == 1

    def test_the_delay_after_failures_doubles_up_to_ten_minutes(self) -> None:
        attempts, waits = Attempts(), []
        for number in range(10):
            attempts = attempts.failed(1000.0 * number + 1, 1000.0 * number + 2)
            waits.append(attempts.wait_s)
        assert waits[:4] == [5, 10, 20, 40]
        assert waits[-1] == 600

    def test_one_start_at_a_time_after_a_failure_and_none_after_too_many(self) -> None:
        attempts = Attempts().failed(0, 10)
        assert attempts.startable(4, 0, 5, 12) == 0
        assert attempts.startable(4, 0, 5, 16) == 1
        assert attempts.startable(4, 1, 5, 16) == 0
        assert attempts.startable(4, 0, 5, 3) == 1, "the clock was set back"
        assert attempts.startable(4, 0, 1, 1e9) == 0
        assert attempts.succeeded(11).startable(4, 0, 1, 12) == 4

    def test_a_start_that_has_proved_successful_before_the_last_failure_ends_no_row(self) -> None:
        attempts = Attempts().failed(0, 10)
        assert attempts.succeeded(9) == attempts
