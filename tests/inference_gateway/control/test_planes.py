"""Two gateways: what each HAProxy has and is to have; and a batch's requests, which are no load."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from inference_gateway.control import state
from inference_gateway.control.data_plane_sync import DataPlaneSync, Orders, WithoutBatches
from inference_gateway.control.planes import NO_MORE_S, Follower, LeavingPlanes, OtherPlane, PlaneReport
from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.report import router_endpoints
from inference_gateway.control.state import EventLog
from inference_gateway.errors import RefusedError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import BatchLoad, ServerState, StartForecast, Traffic
from tests.inference_gateway.control.doubles import FakePlane, Rig
from tests.slurm_kit import NOW_S

SERVING = Replica("chat", "chat-1", "g", Phase.SERVING, NOW_S, NOW_S, job_id=7, host="10.0.0.1", port=20001)
DRAINING = replace(SERVING, phase=Phase.DRAINING, since_s=NOW_S)
SERVER = ServerState("chat", "chat-1", "10.0.0.1", 20001, "up", 1)


def traffic(arrivals: int, in_flight: int = 0, queued: int = 0, errors: int = 0) -> Traffic:
    return Traffic("chat", arrivals, 0, in_flight, queued, errors)


@pytest.fixture
def paths(tmp_path: Path) -> GatewayPaths:
    found = GatewayPaths(tmp_path)
    found.make()
    return found


def tell(paths: GatewayPaths, now_s: float, seen: Traffic, *servers: ServerState, orders_s: float = NOW_S) -> None:
    """The second gateway reports."""
    state.save(paths.of(2).plane, PlaneReport("/run/2", now_s, orders_s, servers, (seen,)))


def test_loads_of_both_gateways_add_up_and_a_restarted_haproxy_is_no_burst(paths: GatewayPaths) -> None:
    other = OtherPlane(paths)
    seen: list[tuple[int, int, int]] = []
    for own, errors, theirs in ((100, 0, 1000), (110, 0, 1020), (110, 1, 1020), (111, 1, 5), (3, 0, 6)):
        tell(paths, NOW_S, traffic(theirs, in_flight=2, queued=1))
        other.read(NOW_S)
        one = other.with_traffic({"chat": traffic(own, in_flight=3, errors=errors)})["chat"]
        seen.append((one.load, one.in_flight, one.queued))
    assert seen == [(0, 5, 1), (30, 5, 1), (30, 5, 1), (36, 5, 1), (40, 5, 1)]
    other.read(NOW_S + 60)  # it has told nothing for long
    assert other.with_traffic({"chat": traffic(4)})["chat"].in_flight == 0


def test_a_draining_replica_is_busy_until_the_other_gateway_knows(paths: GatewayPaths) -> None:
    other = OtherPlane(paths)
    idle = replace(SERVER, in_flight=0)
    for orders_s, theirs, expected in ((NOW_S - 1, 0, 1), (NOW_S + 1, 2, 2), (NOW_S + 1, 0, 0)):
        tell(paths, NOW_S, traffic(0), replace(SERVER, in_flight=theirs), orders_s=orders_s)
        other.read(NOW_S)
        [server] = other.with_servers([idle], [DRAINING])
        assert server.in_flight == expected
    tell(paths, NOW_S, traffic(0), replace(SERVER, in_flight=1))
    other.read(NOW_S)
    [left] = other.with_servers([], [DRAINING])
    assert left.in_flight, "it is left there alone"


class TestAGatewayJobThatHasHandedOver:
    """The job 5, which finishes its requests."""

    def show(self, paths: GatewayPaths, time_s: float, in_flight: int, orders_s: float = NO_MORE_S) -> None:
        servers = (replace(SERVER, in_flight=in_flight),)
        told = PlaneReport("/run/5", time_s, orders_s, servers, (traffic(900, in_flight, queued=1),))
        state.save(paths.leaving / "5.json", told)

    def test_its_requests_count_until_it_is_silent(self, paths: GatewayPaths) -> None:
        leaving = LeavingPlanes(paths)
        self.show(paths, NOW_S, 2)
        seen: list[tuple[int, int, int, int]] = []
        for second in (0, 4, 5):
            leaving.read(NOW_S + second)
            one = leaving.with_traffic({"chat": traffic(7, in_flight=1)})["chat"]
            in_flight = sum(server.in_flight for server in leaving.with_servers([SERVER], [SERVING]))
            seen.append((one.arrivals, one.in_flight, one.queued, in_flight))
        assert seen == [(7, 3, 1, 3), (7, 3, 1, 3), (7, 1, 0, 1)]
        leaving.prune()
        assert list(paths.leaving.iterdir()) == [], "what a killed job has left does not stay for ever"

    @pytest.mark.parametrize("own", [(), (replace(SERVER, in_flight=0),)])
    def test_while_it_takes_requests_every_draining_replica_may_have_some(
        self, paths: GatewayPaths, own: tuple[ServerState, ...]
    ) -> None:
        leaving = LeavingPlanes(paths)
        for orders_s, in_flight, busy in ((0.0, 0, True), (NO_MORE_S, 1, True), (NO_MORE_S, 0, False)):
            self.show(paths, NOW_S, in_flight, orders_s)
            leaving.read(NOW_S)
            found = leaving.with_servers(own, [replace(DRAINING, since_s=NOW_S + 9)])
            assert any(server.in_flight for server in found) == busy

    def test_a_service_that_is_gone_gets_no_traffic_by_it(self, paths: GatewayPaths) -> None:
        leaving = LeavingPlanes(paths)
        self.show(paths, NOW_S, 1)
        leaving.read(NOW_S)
        assert leaving.with_traffic({}) == {}


def test_a_request_that_comes_just_before_the_order_to_drain_is_waited_for(paths: GatewayPaths) -> None:
    class Busy(FakePlane):
        """A client's request comes after the servers were read, and goes to the replica."""

        def drain(self, service: str, name: str) -> None:
            self.in_flight[name] = 1
            super().drain(service, name)

    idle = replace(SERVER, in_flight=0)
    plane = Busy({"chat-1": idle})
    follower = Follower(DataPlaneSync(plane, {"chat": 4}, EventLog(paths.events)), paths.of(2), "/run/2", {"chat": 4})
    leader = OtherPlane(paths)
    state.save(paths.orders, Orders(NOW_S + 1, (DRAINING,), {}, {}))
    for tick in (1, 2):
        follower.tick(NOW_S + tick)
        leader.read(NOW_S + tick)
        assert [server.in_flight for server in leader.with_servers([idle], [DRAINING])] == [1]
    plane.in_flight.clear()
    follower.tick(NOW_S + 3)
    leader.read(NOW_S + 3)
    assert [server.in_flight for server in leader.with_servers([idle], [DRAINING])] == [0]


def test_without_an_own_haproxy_the_other_one_counts(paths: GatewayPaths) -> None:
    other = OtherPlane(paths)
    other.read(NOW_S)
    assert other.with_traffic({}) == {}, "nothing is known"
    tell(paths, NOW_S, traffic(7, in_flight=2), SERVER)
    other.read(NOW_S)
    assert other.with_traffic({})["chat"].in_flight == 2
    own = traffic(1000, in_flight=1)
    assert other.with_traffic({"chat": own})["chat"].arrivals == other.with_traffic({})["chat"].arrivals, "no burst"


@pytest.mark.parametrize("ahead_s", [-600.0, 0.0, 600.0])
def test_a_gateway_whose_clock_is_wrong_is_heard_until_it_is_silent(paths: GatewayPaths, ahead_s: float) -> None:
    other = OtherPlane(paths)
    heard = []
    for second, silent in ((0, False), (1, False), (4, True), (7, True)):
        if not silent:
            tell(paths, NOW_S + ahead_s + second, traffic(second, in_flight=2))
        other.read(NOW_S + second)
        heard.append(other.with_traffic({"chat": traffic(0)})["chat"].in_flight)
    assert heard == [2, 2, 2, 0]


def test_a_replicas_concurrency_is_halved_while_two_gateways_serve(paths: GatewayPaths) -> None:
    other = OtherPlane(paths)
    tell(paths, NOW_S, traffic(0))
    other.read(NOW_S)
    assert other.share({"chat": 5}, NOW_S) == {"chat": 5}
    tell(paths, NOW_S, traffic(1, in_flight=1))
    other.read(NOW_S)
    assert other.share({"chat": 5}, NOW_S) == {"chat": 3}
    assert other.share({"chat": 5}, NOW_S + 30) == {"chat": 5}


def test_a_follower_applies_the_leaders_servers(paths: GatewayPaths) -> None:
    plane = FakePlane()
    sync = DataPlaneSync(plane, {"chat": 4}, EventLog(paths.events))
    follower = Follower(sync, paths.of(2), "/run/2", {"chat": 4})
    follower.tick(NOW_S)
    assert plane.table == {}
    orders = Orders(NOW_S, (SERVING,), {"chat": StartForecast(9)}, {"bob": 5}, {"chat": 4000.0})
    state.save(paths.orders, orders)
    follower.tick(NOW_S + 1)
    assert (list(plane.table), plane.held_back) == (["chat-1"], {"bob": 5})
    assert (plane.told, plane.read_rates) == ([("chat", StartForecast(9))], [("chat", 4000.0)])
    state.save(paths.orders, replace(orders, time_s=NOW_S + 2, replicas=(DRAINING,)))
    follower.tick(NOW_S + 2)
    assert plane.table["chat-1"].state == "draining"
    follower.tick(NOW_S + 3)
    told = state.read(paths.of(2).plane, PlaneReport)
    assert told is not None
    assert (told.orders_s, told.run_directory) == (NOW_S + 2, "/run/2")


def test_all_orders_are_carried_out_and_given_once(paths: GatewayPaths) -> None:
    plane = FakePlane()
    sync = DataPlaneSync(plane, {"chat": 4}, EventLog(paths.events))
    orders = Orders(NOW_S, (SERVING,), {"chat": StartForecast(9)}, {"bob": 5}, {"chat": 4000.0})
    for _ in range(2):
        sync.carry_out(orders, plane.servers())
    assert [(server.name, server.port) for server in plane.servers()] == [("chat-1", 20001)]
    assert (plane.told, plane.held_back) == ([("chat", StartForecast(9))], {"bob": 5})
    assert plane.read_rates == [("chat", 4000.0)]
    sync.carry_out(replace(orders, replicas=(DRAINING,), held_back={}), plane.servers())
    assert (plane.table["chat-1"].state, plane.held_back) == ("draining", {})


def test_the_leader_follows_its_own_orders_as_the_follower_does(tmp_path: Path) -> None:
    rig = Rig(tmp_path, job={"second": {"port": 8081}})
    rig.serve(1)
    plane = FakePlane()
    sync = DataPlaneSync(plane, {"chat": 2}, EventLog(rig.paths.events))
    Follower(sync, rig.paths.of(2), "/run/2", {"chat": 2}).tick(rig.now_s)
    assert (plane.table, plane.told) == (rig.plane.table, rig.plane.told)
    assert (len(plane.table), len(plane.told)) == (1, 1)


def test_reading_rates_are_sent_when_they_change(paths: GatewayPaths) -> None:
    plane = FakePlane()
    sync = DataPlaneSync(plane, {"chat": 4}, EventLog(paths.events))
    for rate in (4000.0, 4200.0, 4600.0, 4600.0):
        sync.read_at({"chat": rate})
    assert [rate for _, rate in plane.read_rates] == [4000.0, 4600.0]


def test_what_was_refused_is_told_again_and_noted_once(paths: GatewayPaths) -> None:
    """A full disk, say. That a service has given up never changes, and clients would wait for nothing."""

    class Full(FakePlane):
        full = True

        def expect(self, service: str, starts: StartForecast) -> None:
            self._take(lambda: super(Full, self).expect(service, starts))

        def hold_back(self, until_s: Mapping[str, int]) -> None:
            self._take(lambda: super(Full, self).hold_back(until_s))

        def read_at(self, service: str, bytes_per_s: float) -> None:
            self._take(lambda: super(Full, self).read_at(service, bytes_per_s))

        def _take(self, take: Callable[[], None]) -> None:
            if self.full:
                raise RefusedError("No space left on device")
            take()

    plane = Full()
    sync = DataPlaneSync(plane, {"chat": 4}, EventLog(paths.events))
    for plane.full in (True, True, False, False):
        sync.update_forecasts({"chat": StartForecast(9, given_up=True)})
        sync.hold_back({"bob": 5})
        sync.read_at({"chat": 4600.0})
    assert (len(plane.told), plane.held_back, len(plane.read_rates)) == (1, {"bob": 5}, 1)
    assert len(paths.events.read_text().splitlines()) == 3


def test_a_new_haproxy_is_told_all_again_though_nobody_has_seen_the_old_one_end(paths: GatewayPaths) -> None:
    plane = FakePlane()
    sync = DataPlaneSync(plane, {"chat": 4}, EventLog(paths.events))

    def tell() -> None:
        sync.read()
        sync.hold_back({"bob": 5})
        sync.update_forecasts({"chat": StartForecast(9)})
        sync.read_at({"chat": 4600.0})

    tell()
    tell()
    assert (len(plane.told), len(plane.read_rates)) == (1, 1)
    plane.process, plane.held_back = 2, {}
    tell()
    assert (plane.held_back, len(plane.told), len(plane.read_rates)) == ({"bob": 5}, 2, 2)


def test_requests_of_batches_are_no_load(paths: GatewayPaths) -> None:
    without = WithoutBatches()
    found = []
    for one, sent, in_flight in (
        (traffic(10), 0, 0),
        (traffic(16, in_flight=5), 4, 4),  # two are others'
        (traffic(17, in_flight=5), 9, 4),  # HAProxy has counted one of the five
        (traffic(21, in_flight=4), 9, 4),
        (traffic(24), 9, 0),  # three are others'
        (traffic(24, errors=1), 9, 0),  # one of these was refused after all
    ):
        seen = without.of({"chat": one}, BatchLoad("w", {"chat": sent}, {"chat": in_flight}), {"chat"})["chat"]
        found.append((seen.load, seen.in_flight))
    assert found == [(0, 0), (2, 1), (2, 1), (2, 0), (5, 0), (5, 0)]
    assert without.of({"chat": traffic(9)}, BatchLoad(""), ())["chat"] == traffic(9)


def test_other_routers_get_the_list_of_serving_replicas() -> None:
    ipv6 = replace(SERVING, name="chat-2", host="fd00::1")
    found = yaml.safe_load(router_endpoints([ipv6, DRAINING, SERVING]))
    labels = {"service": "chat", "job": "7"}
    assert found == {"endpoints": [{"name": "chat-1", "address": "10.0.0.1", "port": "20001", "labels": labels}]}
