"""Replicas that misbehave: one of them never takes the service, and each fault has one clear answer."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from inference_gateway.dataplane.endpoints import HeldService
from inference_gateway.dataplane.health import HealthLoop
from inference_gateway.dataplane.runtime import RuntimeApi, ServerRow
from inference_gateway.dataplane.settings import HealthSettings, ServiceSettings
from inference_gateway.dataplane.statistics import HaproxyStatistics
from inference_gateway.model import Endpoint
from tests.inference_gateway.rig import Answer, Replica, Rig, gateway, replicas, wait_until

QUICK = HealthSettings(interval_s=0.2, timeout_s=0.5, fall=2, rise=1, ejection_s=2.0)
REPEATABLE = {"idempotency_key": "1"}
BAD_ANSWERS = ("garbage", "close", "status-500")


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    once = ServiceSettings("once", response_timeout_s=1.0, health=QUICK)
    again = ServiceSettings("again", repeat_posts="unanswered", health=QUICK)
    # Checks that come too late to matter: what is seen is what single requests do.
    rare = HealthSettings(interval_s=600, error_limit=1000)
    plain = ServiceSettings("plain", health=rare)
    # Out for longer than a round of tending, which is a second, so that the tending sees it; and then for longer than
    # a test takes, or for no longer than one waits.
    judging = HealthSettings(interval_s=0.8, rise=2, ejection_s=600.0)
    judged = [ServiceSettings(f"judged-{fault}", health=judging) for fault in BAD_ANSWERS]
    brief = ServiceSettings("brief", health=replace(judging, ejection_s=1.0))
    with gateway(directory, once, again, plain, *judged, brief) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    yield running
    running.clear()


def many(rig: Rig, service: str, count: int, **headers: str) -> list[Answer]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: rig.complete(service, **headers), range(count)))


@pytest.mark.parametrize(
    ("fault", "status"),
    [("garbage", 502), ("close", 502), ("status-500", 500), ("status-503", 503)],
)
def test_a_post_that_was_sent_is_not_repeated_but_answered(
    rig: Rig, servers: list[Replica], fault: str, status: int
) -> None:
    rig.add("plain", servers[0].endpoint)
    before = servers[0].state["requests"]
    servers[0].behave(fault=fault)
    answer = rig.complete("plain")
    assert (answer.status, answer.json["error"]["code"]) == (status, status)
    assert servers[0].state["requests"] == before + 1


@pytest.mark.parametrize("fault", ["garbage", "close", "status-503"])
def test_a_repeatable_post_is_answered_by_another_replica(rig: Rig, servers: list[Replica], fault: str) -> None:
    rig.add("plain", servers[0].endpoint, servers[1].endpoint)
    servers[0].behave(fault=fault)
    answers = [rig.complete("plain", **REPEATABLE) for _ in range(6)]
    assert {(answer.status, answer.headers["x-replica"]) for answer in answers} == {(200, "r2")}


def test_a_replica_that_hangs_is_given_up(rig: Rig, servers: list[Replica]) -> None:
    servers[0].behave(fault="hang")
    rig.add("once", servers[0].endpoint)
    answer = rig.complete("once")
    assert (answer.status, answer.json["error"]["message"]) == (504, "the replica did not answer in time")
    wait_until(lambda: servers[0].state["in_flight"] == 0)


def test_an_answer_that_breaks_off_is_broken_off_for_the_client(rig: Rig, servers: list[Replica]) -> None:
    rig.add("plain", servers[0].endpoint)
    servers[0].behave(fault="close-midway")
    with pytest.raises(Exception, match="IncompleteRead"):
        rig.complete("plain")


def until_ejected(rig: Rig, service: str) -> None:
    """Send requests until r1 is out: HAProxy judges by those in a row that one replica happens to get."""

    def ejected() -> bool:
        many(rig, service, 12)
        return f"ejected service={service} replica=r1" in rig.plane.files.activator_log.read_text()

    wait_until(ejected)


@pytest.mark.parametrize("fault", BAD_ANSWERS)
def test_one_bad_replica_is_taken_out_by_its_answers(rig: Rig, servers: list[Replica], fault: str) -> None:
    """Its health check passes all the while; least outstanding would send it everything, as it is the quickest."""
    service = f"judged-{fault}"
    rig.add(service, *(server.endpoint for server in servers))
    servers[0].behave(fault=fault)
    until_ejected(rig, service)
    wait_until(lambda: not is_being_checked(rig, service, "r1"))  # the last check may bring it back for a second
    wait_until(lambda: rig.replica_states(service) == {"r1": "down", "r2": "up", "r3": "up"})
    assert {answer.status for answer in many(rig, service, 24)} == {200}


def test_one_that_was_taken_out_comes_back(rig: Rig, servers: list[Replica]) -> None:
    rig.add("brief", *(server.endpoint for server in servers))
    servers[0].behave(fault="status-500")
    until_ejected(rig, "brief")
    servers[0].behave()
    wait_until(lambda: rig.replica_states("brief")["r1"] == "up")
    rows = {row.name: (row.state, row.watched) for row in HaproxyStatistics(rig.plane.files).states("brief")}
    assert rows == dict.fromkeys(("r1", "r2", "r3"), ("up", True))


@pytest.mark.parametrize(("floor_share", "state", "watched"), [(0.5, "down", False), (1.0, "up", True)])
def test_a_replica_that_has_come_back_meanwhile_is_taken_out_all_the_same(
    rig: Rig, servers: list[Replica], floor_share: float, state: str, *, watched: bool
) -> None:
    """HAProxy said that it is down; its next check has passed before the order to check it no more arrives.

    It stays out because nobody checks it; where every replica has to stay in, it stays in and is checked.
    """
    rig.add("once", *(server.endpoint for server in servers))
    wait_until(lambda: set(rig.replica_states("once").values()) == {"up"})
    service = HeldService("once", (), 1, 0.0, 1.0, 1, floor_share=floor_share, ejection_s=2.0)
    states = {"r1": ("DOWN", "HANA"), "r2": ("UP", "L7OK"), "r3": ("UP", "L7OK")}
    told = [ServerRow("once", name, status, check, "") for name, (status, check) in states.items()]
    orders = HealthLoop(rig.plane.files).treat(service, told, 0.0, [])
    RuntimeApi(rig.plane.files.stats_socket).order(orders)
    rows = {row.name: (row.state, row.watched) for row in HaproxyStatistics(rig.plane.files).states("once")}
    assert rows == {"r1": (state, watched), "r2": ("up", True), "r3": ("up", True)}


def test_a_check_that_was_under_way_does_not_bring_an_ejected_replica_back(rig: Rig, servers: list[Replica]) -> None:
    """HAProxy takes one pass for enough where checks are disabled; the replica then stayed in, unchecked."""
    rig.add("brief", *(server.endpoint for server in servers))
    wait_until(lambda: set(rig.replica_states("brief").values()) == {"up"})
    servers[0].behave(unhealthy="late")
    service = HeldService("brief", (), 1, 0.0, 1.0, 1, floor_share=0.5, ejection_s=600.0)
    told = [ServerRow("brief", "r1", "DOWN", "HANA", ""), *(ServerRow("brief", name, "UP", "", "") for name in "ab")]

    def it_is_taken_out_again() -> bool:
        loop = HealthLoop(rig.plane.files)
        wait_until(lambda: is_being_checked(rig, "brief", "r1"))
        RuntimeApi(rig.plane.files.stats_socket).order(loop.treat(service, told, 0.0, []))
        wait_until(lambda: rig.replica_states("brief")["r1"] == "up")
        done = loop.run_round({"brief": service}, 1.0)
        return done == ["still ejected service=brief replica=r1"] and loop.run_round({"brief": service}, 2.0) == []

    wait_until(it_is_taken_out_again)  # the activator, if it has just started, enables checks once
    assert rig.replica_states("brief")["r1"] == "down"


def is_being_checked(rig: Rig, service: str, name: str) -> bool:
    """Bit 0 of a check's state, the 14th field."""
    text = RuntimeApi(rig.plane.files.stats_socket).ask(f"show servers state service_{service}")
    (fields,) = (line.split() for line in text.splitlines() if f" {name} " in line)
    return bool(int(fields[13]) & 1)


def test_an_unhealthy_replica_is_taken_out_and_comes_back(rig: Rig, servers: list[Replica]) -> None:
    rig.add("once", *(server.endpoint for server in servers))
    servers[2].behave(unhealthy="status-500")
    wait_until(lambda: rig.replica_states("once")["r3"] == "down")
    used = Counter(answer.headers["x-replica"] for answer in many(rig, "once", 12))
    assert used.keys() == {"r1", "r2"}
    servers[2].behave()
    wait_until(lambda: rig.replica_states("once")["r3"] == "up")


@pytest.mark.parametrize("unhealthy", ["status-500", "hang"])
def test_the_last_replicas_stay_in_however_sick(rig: Rig, servers: list[Replica], unhealthy: str) -> None:
    for server in servers:
        server.behave(unhealthy=unhealthy)
    rig.add("again", *(server.endpoint for server in servers))
    log = rig.plane.files.messages
    wait_until(lambda: all(f"service_again/{name} is DOWN" in log.read_text() for name in ("r1", "r2", "r3")))
    assert {answer.status for answer in many(rig, "again", 16)} == {200}
    wait_until(lambda: "kept in service=again" in rig.plane.files.activator_log.read_text())
    wait_until(lambda: list(rig.replica_states("again").values()).count("up") >= 2)

    def known_to_be_sick() -> bool:
        """None while a check is under way."""
        kept_in = [server.passed for server in rig.plane.servers() if server.state == "up"]
        return False in kept_in and True not in kept_in

    wait_until(known_to_be_sick)


def test_nobody_at_the_address(rig: Rig, servers: list[Replica]) -> None:
    """A POST that no replica has received goes to another one, opt-in or not."""
    rig.add("plain", Endpoint("nobody", "127.0.0.1", 1, 8), servers[0].endpoint)
    assert {rig.complete("plain").status for _ in range(6)} == {200}


def test_a_killed_replica_loses_no_repeatable_request(rig: Rig, servers: list[Replica]) -> None:
    with replicas("victim") as (victim,):
        for replica in (victim, servers[0]):
            replica.behave(first_token_ms=300.0)
        rig.add("again", victim.with_concurrency(4), servers[0].with_concurrency(8))
        with ThreadPoolExecutor(16) as pool:
            pending = [pool.submit(rig.complete, "again") for _ in range(24)]
            wait_until(lambda: victim.state["in_flight"] > 0)
            victim.kill()
            answers = [request.result() for request in pending]
    assert Counter(answer.status for answer in answers) == {200: 24}


def test_requests_that_wait_for_the_last_replica_outlive_it(rig: Rig, servers: list[Replica]) -> None:
    """HAProxy 2.6 leaves them in the backend's queue; they are moved to the activator and meet the next replica."""
    with replicas("victim") as (victim,):
        victim.behave(first_token_ms=5000.0)
        rig.add("again", victim.with_concurrency(1))
        with ThreadPoolExecutor(8) as pool:
            pending = [pool.submit(rig.complete, "again") for _ in range(6)]
            wait_until(lambda: next(t for t in rig.plane.traffic() if t.service == "again").queued == 5)
            victim.kill()
            wait_until(lambda: rig.replica_states("again")["victim"] == "down")
            wait_until(lambda: rig.plane.remove("again", "victim"))
            rig.added.clear()
            rig.add("again", servers[0].endpoint)
            answers = [request.result() for request in pending]
    assert Counter((answer.status, answer.headers.get("x-replica")) for answer in answers) == {(200, "r1"): 6}
