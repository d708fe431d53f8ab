"""Which sick replicas stay in, and how long bad ones stay out."""

import pytest

from inference_gateway.dataplane.health import Ejections, failed_requests, put_back
from inference_gateway.dataplane.runtime import ServerRow

REFUSED = "Detected 3 consecutive errors, last one was: L4 unsuccessful connection"
FAILED = "Detected 3 consecutive errors, last one was: Wrong http response"


def row(name: str, status: str = "UP", check: str = "L7OK", remark: str = "") -> ServerRow:
    return ServerRow("s", name, status, check, remark)


@pytest.mark.parametrize(
    ("rows", "share", "names"),
    [
        ([row("a"), row("b", "DOWN", "L7STS")], 0.5, []),
        ([row("a", "DOWN", "L7STS")], 0.0, ["a"]),
        ([row("a", "DOWN", "L7TOUT"), row("b", "DOWN", "L7STS")], 0.5, ["a"]),
        ([row("a", "DOWN", "L4CON"), row("b", "DOWN", "L7STS")], 0.5, ["b"]),
        ([row("a", "DOWN", "L4CON"), row("b", "DOWN", "L4TOUT")], 0.5, []),
        ([row("a", "DOWN", "L6RSP"), row("b", "DOWN", "L7STS")], 0.5, ["b"]),
        ([row("a", "DOWN", "L6TOUT"), row("b", "DOWN", "L7TOUT")], 1.0, ["b"]),
        ([row("a", "DOWN", "HANA", REFUSED)], 0.5, []),
        ([row("a", "DOWN", "HANA", FAILED)], 0.5, ["a"]),
        ([row("a", "DOWN", "L7STS"), row("b", "DOWN 1/2", "L7OK")], 0.5, ["b"]),
        ([row("a"), row("b", "DOWN", "L7STS"), row("c", "DOWN", "L7STS")], 0.5, ["b"]),
        ([row("a"), row("b", "DOWN", "L7STS"), row("c", "DOWN", "L7STS")], 1.0, ["b", "c"]),
        ([row("a", "DRAIN"), row("b", "DOWN", "L7STS"), row("c", "MAINT")], 0.5, ["b"]),
        ([row("a", "UP 2/3"), row("b", "no check")], 1.0, []),
        ([], 0.5, []),
    ],
)
def test_the_floor(rows: list[ServerRow], share: float, names: list[str]) -> None:
    assert put_back(rows, share) == names


def test_only_those_that_answer_badly_are_ejected() -> None:
    assert failed_requests(row("a", "DOWN", "HANA", FAILED))
    assert not failed_requests(row("a", "DOWN", "HANA", REFUSED))
    assert not failed_requests(row("a", "DOWN", "L7STS"))
    assert not failed_requests(row("a", "UP", "HANA", FAILED))


def test_each_time_out_is_longer_and_good_behaviour_is_forgotten_for() -> None:
    book = Ejections()
    assert book.eject("s", "a", 30.0, now_s=0.0)
    assert not book.eject("s", "a", 30.0, now_s=1.0)
    assert book.due(29.0) == []
    assert book.due(30.0) == [("s", "a")]
    assert book.due(30.0) == []
    assert book.eject("s", "a", 30.0, now_s=40.0)
    assert book.due(99.0) == []
    assert book.due(100.0) == [("s", "a")]
    assert book.due(100.0 + 600.0 + 1.0) == []
    assert book.eject("s", "a", 30.0, now_s=1000.0)
    assert book.due(1030.0) == [("s", "a")], "as if it were the first time"


@pytest.mark.parametrize(("well_for_s", "stay_s"), [(600.0, 90.0), (600.5, 30.0)])
def test_good_behaviour_counts_for_ten_times_the_last_stay(well_for_s: float, stay_s: float) -> None:
    book = Ejections()
    for began_s, stayed_s in ((0.0, 30.0), (40.0, 60.0)):
        book.eject("s", "a", 30.0, began_s)
        assert book.due(began_s + stayed_s) == [("s", "a")]
    assert book.due(100.0 + well_for_s) == []
    book.eject("s", "a", 30.0, 1000.0)
    assert book.due(1000.0 + stay_s - 0.5) == []
    assert book.due(1000.0 + stay_s) == [("s", "a")]


def test_no_stay_is_longer_than_ten_times_the_first() -> None:
    book, now_s = Ejections(), 0.0
    for _ in range(12):
        book.eject("s", "a", 30.0, now_s)
        now_s += 300.0
        assert book.due(now_s) == [("s", "a")]
    book.eject("s", "a", 30.0, now_s)
    assert book.due(now_s + 299.0) == []
    assert book.due(now_s + 300.0) == [("s", "a")]


def test_one_that_is_needed_is_in_before_its_time() -> None:
    book = Ejections()
    book.eject("s", "a", 30.0, now_s=0.0)
    book.release("s", "a")
    assert book.due(1000.0) == []
    book.release("s", "never out")
