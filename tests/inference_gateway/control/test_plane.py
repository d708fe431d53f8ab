"""What the data plane should have against what it has."""

from dataclasses import replace

import pytest

from inference_gateway.control.data_plane_sync import Add, Drain, Remove, changes
from inference_gateway.control.replica import Phase, Replica
from inference_gateway.model import Endpoint, ServerState

NAMES = ("chat", "chat-1")
SERVER = ServerState("chat", "chat-1", "n1", 20001, "up", 0)
ADD = Add("chat", Endpoint("chat-1", "n1", 20001, 4))


def replica(phase: Phase) -> Replica:
    return Replica("chat", "chat-1", "g1", phase, 0.0, 0.0, host="n1", port=20001)


def found(phase: Phase | None, *have: ServerState) -> tuple[object, ...]:
    return changes([] if phase is None else [replica(phase)], have, {"chat": 4})


def test_a_serving_replica_is_added_with_its_concurrency() -> None:
    assert found(Phase.SERVING) == (ADD,)


@pytest.mark.parametrize("state", ["up", "down"])
def test_an_added_server_is_not_changed_even_if_it_is_down(state: str) -> None:
    assert found(Phase.SERVING, replace(SERVER, state=state)) == ()


@pytest.mark.parametrize(
    "stale",
    [
        {"host": "n2"},
        {"port": 20002},
        {"state": "draining"},
        {"state": "maintenance"},
        {"service": "other"},
        {"listed": False},
    ],
)
def test_a_server_with_a_stale_address_or_state_is_added_again(stale: dict[str, object]) -> None:
    """A requeued job serves at another place; a drained one was wanted again."""
    assert found(Phase.SERVING, replace(SERVER, **stale)) == (ADD,)


@pytest.mark.parametrize(("state", "done"), [("up", True), ("down", True), ("draining", False), ("maintenance", False)])
def test_a_draining_server_stays_without_new_requests(state: str, *, done: bool) -> None:
    assert found(Phase.DRAINING, replace(SERVER, state=state)) == ((Drain(*NAMES),) if done else ())


@pytest.mark.parametrize("phase", list(Phase))
def test_a_replica_that_does_not_serve_is_not_added(phase: Phase) -> None:
    assert found(phase) == ((ADD,) if phase is Phase.SERVING else ())


@pytest.mark.parametrize("phase", [None, Phase.SUBMITTING, Phase.PENDING, Phase.STARTING, Phase.ENDING])
@pytest.mark.parametrize(
    ("state", "open_"), [("up", True), ("down", True), ("draining", False), ("maintenance", False)]
)
def test_an_unknown_server_is_drained_and_then_removed(phase: Phase | None, state: str, *, open_: bool) -> None:
    remove = Remove(*NAMES)
    assert found(phase, replace(SERVER, state=state)) == ((Drain(*NAMES), remove) if open_ else (remove,))


def test_services_that_are_not_configured_are_left_alone() -> None:
    stranger = replace(replica(Phase.SERVING), service="other")
    assert changes([stranger], [replace(SERVER, service="another")], {"chat": 4}) == ()
