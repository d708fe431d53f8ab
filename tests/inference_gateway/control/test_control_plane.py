"""The control plane between a Slurm and a data plane that are told what to do."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_gateway.control import control_plane, state, usage
from inference_gateway.control.planes import NO_MORE_S, PlaneReport
from inference_gateway.control.replica import LOST_AFTER_S
from inference_gateway.control.report import Report, ServiceReport
from inference_gateway.control.service import ServiceControl
from inference_gateway.control.state import Override
from inference_gateway.errors import GatewayError, RefusedError
from inference_gateway.model import Endpoint, Traffic
from inference_gateway.replicas import reports, submission
from tests.inference_gateway.control.doubles import FakePlane, Rig, job

UNREADABLE = "/proc/self/mem"
"""Reading it ends with an I/O error, as while a file server fails."""


def test_a_replica_from_submission_to_serving(rig: Rig) -> None:
    assert rig.tick().coming == 1
    assert rig.plane.table == {}
    rig.serve(1)
    (server,) = rig.plane.table.values()
    assert (server.state, server.host, server.port) == ("up", "127.0.0.1", 20001)
    assert rig.events()[-4:] == ["start", "submitted", "started", "serving"]


def test_registered_but_silent_is_not_ready(rig: Rig, unready: set[str]) -> None:
    unready.add("*")
    rig.tick()
    rig.run_all()
    assert rig.tick(5).coming == 1
    assert rig.plane.table == {}
    unready.clear()
    assert rig.tick(2).serving == 1


def test_load_starts_replicas_and_pending_ones_count(rig: Rig) -> None:
    rig.serve(1)
    rig.set_load(8)
    assert rig.tick(10).coming == 3
    assert len(rig.slurm.submissions) == 4
    log = map(json.loads, rig.paths.events.read_text().splitlines())
    wanted = [(one["replicas"], one["present"]) for one in log if one["event"] == "wanted"]
    assert wanted == [(1, 0), (4, 1)], "each change is told, and only changes"


def test_a_rule_that_fails_holds_up_nothing_but_its_service(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.serve(1)
    with monkeypatch.context() as broken:
        broken.setattr(ServiceControl, "decide", lambda *_: 1 / 0)
        rig.set_load(8)
        shown = rig.tick(3)
    assert (shown.serving, shown.coming) == (1, 0)
    assert [server.state for server in rig.plane.table.values()] == ["up"]
    assert rig.tick(10).coming == 3


def test_pending_replicas_are_cancelled_first_then_the_least_loaded_is_drained(rig: Rig) -> None:
    rig.serve(1)
    rig.set_load(4)
    rig.serve(2)
    rig.set_load(6)
    rig.tick(3)
    (pending,) = [found for found in rig.slurm.active() if found.state == "PENDING"]
    rig.plane.in_flight = dict(zip(rig.plane.table, (2, 1), strict=True))
    rig.set_load(2)
    rig.tick()
    assert rig.slurm.cancelled == [pending.job_id]
    states = {name: server.state for name, server in rig.plane.table.items()}
    least = min(states, key=lambda name: rig.plane.in_flight[name])
    assert states == {name: "draining" if name == least else "up" for name in states}


def test_other_routers_find_the_replicas_that_serve_now(rig: Rig) -> None:
    rig.tick()
    path = rig.paths.router_endpoints("chat")
    assert yaml.safe_load(path.read_text()) == {"endpoints": []}
    rig.serve(1)
    (found,) = yaml.safe_load(path.read_text())["endpoints"]
    assert (found["address"], found["port"], found["labels"]["job"]) == ("127.0.0.1", "20001", "1")
    path.unlink()
    rig.tick(3)
    assert not path.exists(), "it is written when something has changed"
    rig.slurm.set(1, state="FAILED")
    rig.tick(2)
    assert yaml.safe_load(path.read_text()) == {"endpoints": []}


def test_the_leader_scales_for_the_other_gateway_while_its_own_haproxy_is_gone(tmp_path: Path) -> None:
    """As where its port is taken or HAProxy does not start any more: the other gateway has all requests."""
    rig = Rig(tmp_path, job={"second": {"port": 8081}})
    rig.serve(1)
    (server,) = rig.plane.table.values()

    def tick(in_flight: int) -> ServiceReport:
        busy = replace(server, in_flight=in_flight)
        came = Traffic("chat", in_flight, 0, in_flight, 0)
        state.save(rig.paths.of(2).plane, PlaneReport("/run/2", rig.now_s, rig.now_s, (busy,), (came,)))
        return rig.tick()

    rig.plane.dead = True
    for _ in range(3):
        shown = tick(6)
    assert (shown.serving, shown.coming) == (1, 2)
    rig.slurm.set(1, state="NODE_FAIL")
    for _ in range(12):
        shown = tick(2)
    assert (shown.serving, shown.coming) == (0, 1), "what dies is replaced"


def test_a_draining_replica_is_waited_for_while_only_the_other_gateway_answers(tmp_path: Path) -> None:
    """Our own HAProxy may be too busy to answer, and have requests there."""
    rig = Rig(tmp_path, job={"second": {"port": 8081}})
    rig.serve(1)
    reports.leave(rig.paths.replica(next(iter(rig.plane.table))))
    rig.tick()
    rig.plane.dead = True
    for _ in range(30):
        state.save(rig.paths.of(2).plane, PlaneReport("/run/2", rig.now_s, rig.now_s, (), ()))
        rig.tick()
    assert 1 not in rig.slurm.cancelled


def test_a_draining_replica_is_waited_for_while_a_former_gateway_job_has_requests_there(rig: Rig) -> None:
    """That job has handed over and finishes them; the new HAProxy has never heard of the replica."""
    rig.serve(1)
    [(name, server)] = rig.plane.table.items()
    reports.leave(rig.paths.replica(name))
    rig.plane.in_flight = {name: 1}
    rig.tick()
    rig.restart()
    rig.plane.table, rig.plane.in_flight = {}, {}
    left = rig.paths.leaving / "5.json"
    for _ in range(20):
        state.save(left, PlaneReport("/run/5", rig.now_s, NO_MORE_S, (replace(server, in_flight=1),), ()))
        assert rig.tick().draining == 1
    assert 1 not in rig.slurm.cancelled
    left.unlink()
    rig.tick(2)
    assert 1 in rig.slurm.cancelled


def test_a_draining_replica_finishes_what_it_has(rig: Rig) -> None:
    rig.serve(1)
    rig.set_load(4)
    rig.serve(2)
    rig.plane.in_flight = dict.fromkeys(rig.plane.table, 1)
    rig.set_load(1)
    rig.tick(30)
    assert rig.slurm.cancelled == []
    rig.plane.in_flight = {}
    rig.tick(3)
    assert len(rig.slurm.cancelled) == 1
    assert len(rig.plane.table) == 1
    assert "drained" in rig.events()


def test_a_draining_replica_that_does_not_end_is_cut_at_the_deadline(rig: Rig) -> None:
    rig.serve(1)
    rig.set_load(4)
    rig.serve(2)
    rig.plane.in_flight = dict.fromkeys(rig.plane.table, 1)
    rig.set_load(1)
    rig.tick(59)
    assert rig.slurm.cancelled == []
    rig.tick(5)
    assert len(rig.slurm.cancelled) == 1
    assert "cut" in rig.events()


def test_a_replica_that_is_told_to_end_is_drained_and_replaced(rig: Rig) -> None:
    rig.serve(1)
    (name,) = rig.plane.table
    rig.plane.in_flight = {name: 1}
    reports.leave(rig.paths.replica(name))
    shown = rig.tick()
    assert (shown.draining, shown.coming) == (1, 1)
    assert rig.plane.table[name].state == "draining"


def test_a_dead_replica_is_replaced_at_once(rig: Rig) -> None:
    rig.serve(1)
    rig.tick(70)
    rig.slurm.set(1, state="NODE_FAIL", reason="NodeDown")
    rig.tick(2)
    assert rig.plane.table == {}
    assert [found.job_id for found in rig.slurm.active()] == [2]
    assert "died" in rig.events()


def test_a_replica_that_slurm_requeues_waits_again_and_is_not_replaced(rig: Rig) -> None:
    rig.serve(1)
    rig.slurm.set(1, state="PENDING", restarts=1)
    shown = rig.tick(2)
    assert (shown.serving, shown.coming) == (0, 1)
    assert rig.plane.table == {}
    rig.serve(1)
    assert len(rig.slurm.submissions) == 1


def test_how_long_a_replica_ran_before_a_requeue_is_no_start_time(rig: Rig) -> None:
    rig.serve(1)
    rig.slurm.set(1, time_limit_s=None)
    rig.tick(2)
    rig.now_s += 36_000
    rig.slurm.set(1, state="PENDING", restarts=1, start_s=None)
    waiting = rig.tick(3)
    assert (waiting.coming, waiting.next_in_s) == (1, pytest.approx(6, abs=6))
    rig.serve(1)
    for told in rig.plane.told:
        assert told[1].retry_after_s < 60


def test_a_stale_registration_of_an_earlier_run_is_not_used(rig: Rig) -> None:
    rig.serve(1)
    rig.slurm.set(1, state="PENDING", restarts=1)
    rig.tick(2)
    rig.slurm.set(1, state="RUNNING", start_s=rig.now_s)
    assert rig.tick(5).serving == 0


def test_a_broken_command_is_tried_ever_more_rarely_and_then_given_up(tmp_path: Path) -> None:
    rig = Rig(tmp_path, scale={"min": 4, "attempts": 3})
    times_s: list[float] = []
    for _ in range(600):
        before = len(rig.slurm.submissions)
        shown = rig.tick()
        times_s += [rig.now_s] * (len(rig.slurm.submissions) - before)
        for found in rig.slurm.active():
            rig.slurm.set(found.job_id, state="FAILED", reason="NonZeroExitCode")
    assert len(times_s) == 4 + 1 + 1
    assert times_s[5] - times_s[4] > times_s[4] - times_s[3] > 4
    assert shown.given_up
    assert [told.given_up for _, told in rig.plane.told] == [True], "clients are not to wait for nothing"
    state.save(rig.paths.overrides, {"chat": Override(1, rig.now_s)})
    rig.tick()
    assert len(rig.slurm.submissions) == 7
    assert not rig.plane.told[-1][1].given_up


@pytest.mark.parametrize("after_s", [0, 10, 50])
def test_a_server_that_crashes_soon_after_it_serves_is_given_up_too(tmp_path: Path, after_s: int) -> None:
    """As one that runs out of memory with its first requests."""
    rig = Rig(tmp_path, scale={"attempts": 3})
    submitted_s: list[float] = []
    for _ in range(600):
        rig.run_all()
        before = len(rig.slurm.submissions)
        shown = rig.tick()
        submitted_s += [rig.now_s] * (len(rig.slurm.submissions) - before)
        for found in shown.replicas:
            if found.phase == "serving" and found.job_id and rig.now_s >= found.since_s + after_s:
                rig.slurm.set(found.job_id, state="FAILED", reason="OutOfMemory")
    first, second, third = submitted_s
    assert third - second > second - first
    assert shown.given_up


def test_a_replica_that_serves_for_a_minute_ends_a_row_of_failures(tmp_path: Path) -> None:
    rig = Rig(tmp_path, scale={"attempts": 3, "min": 4})
    rig.serve(4)
    for number in (1, 2, 3):
        rig.slurm.set(number, state="FAILED", reason="OutOfMemory")
    rig.tick(10)
    assert rig.tick(40).coming == 1, "one at a time"
    assert rig.tick(20).coming == 3, "the fourth has served for a minute"


def test_failures_between_short_visits_are_no_row(tmp_path: Path) -> None:
    """Each replica of a service that goes to zero at once serves for less than a minute."""
    rig = Rig(tmp_path, scale={"attempts": 2, "min": 0})
    for visit in range(1, 6):
        rig.set_load(1)
        rig.tick(2)
        rig.slurm.set(max(rig.slurm.known), state="FAILED", reason="NodeFail")
        rig.tick(10)
        rig.serve(1)
        rig.set_load(0)
        shown = rig.tick(60)
        assert (shown.serving, shown.given_up, len(rig.slurm.submissions)) == (0, False, 2 * visit)


def test_a_job_that_never_serves_is_cancelled_at_the_start_limit(tmp_path: Path, unready: set[str]) -> None:
    rig = Rig(tmp_path, replica={"start_limit_s": 20})
    unready.add("*")
    rig.tick()
    rig.run_all()
    rig.tick(20)
    assert rig.slurm.cancelled == []
    rig.tick(5)
    assert rig.slurm.cancelled == [1]


@pytest.mark.parametrize("limit_s", [90.0, 130.0])
def test_a_service_whose_jobs_end_before_they_serve_is_given_up(
    tmp_path: Path, unready: set[str], limit_s: float
) -> None:
    """As where loading hangs, and the notice for a successor begins before `start_limit_s` is over."""
    unready.add("*")
    rig = Rig(tmp_path, replica={"start_limit_s": 100})
    for _ in range(160):
        for number, found in rig.slurm.known.items():
            if found.state == "RUNNING" and found.start_s is not None and rig.now_s > found.start_s + limit_s:
                rig.slurm.set(number, state="TIMEOUT")
            if found.state == "PENDING":
                rig.slurm.set(number, time_limit_s=limit_s)
                rig.run(number)
        shown = rig.tick(5)
    assert (shown.given_up, len(rig.slurm.submissions)) == (True, 5)


def test_a_refused_submission_is_repeated_but_never_given_up(rig: Rig) -> None:
    rig.slurm.refusal = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
    assert not rig.tick(3600).given_up
    assert 5 < rig.events().count("submission refused") < 20
    rig.slurm.refusal = ""
    rig.tick(601)
    assert len(rig.slurm.submissions) == 1


def test_submissions_that_slurm_does_not_answer_are_repeated_but_never_given_up(rig: Rig) -> None:
    """As while slurmctld is overloaded: it still lists jobs."""
    rig.slurm.mute = frozenset({"submit"})
    assert not rig.tick(1200).given_up
    assert 4 < rig.events().count("lost") < 15
    rig.slurm.mute = frozenset()
    rig.tick(601)
    assert len(rig.slurm.submissions) == 1


def test_a_lost_answer_does_not_start_a_second_job(rig: Rig) -> None:
    rig.slurm.forgets = True
    rig.tick(3)
    rig.slurm.forgets = False
    rig.serve(1)
    assert len(rig.slurm.submissions) == 1


def test_a_submission_that_never_arrived_is_made_again(rig: Rig) -> None:
    rig.slurm.silent = True
    rig.tick(10)
    rig.slurm.silent = False
    rig.tick(5)
    assert rig.slurm.submissions == []
    rig.tick(int(LOST_AFTER_S) + 10)
    assert len(rig.slurm.submissions) == 1


def test_a_job_that_slurm_does_not_list_as_it_was_submitted_does_not_stay(rig: Rig) -> None:
    """As where a site's job_submit plugin writes the comments: nobody would use it, or ever end it."""
    rig.tick()
    rig.slurm.set(1, comment="project x")
    rig.tick(int(LOST_AFTER_S) + 10)
    assert rig.slurm.cancelled == [1]
    assert "lost" in rig.events()


def test_a_submission_that_arrives_after_it_was_taken_for_lost_is_adopted(rig: Rig) -> None:
    """A slurmctld that hangs may work off an sbatch that was given up long ago."""
    rig.slurm.silent = True
    rig.tick(1)
    memory = state.read(rig.paths.memory, state.Memory)
    assert memory is not None
    (lost,) = memory.replicas
    rig.slurm.silent = False
    rig.tick(int(LOST_AFTER_S) + 10)
    rig.serve(1)
    rig.slurm.known[9] = job(9, lost.name, f"igw:g:chat:{lost.generation}", submit_s=rig.now_s)
    rig.run(9)
    assert rig.tick(5).serving == 1
    assert "adopted" in rig.events()
    # Two are one too many: one of them goes, and nothing is started or cancelled besides.
    assert rig.tick(5).replicas[0].phase == "serving"
    assert (len(rig.slurm.submissions), len(rig.slurm.cancelled)) == (1, 1)


def test_a_job_that_turns_up_for_a_service_that_is_gone_is_cancelled(rig: Rig) -> None:
    rig.serve(1)
    rig.slurm.known[9] = job(9, "old-1", "igw:g:old:abcd1234")
    rig.tick(3)
    assert rig.slurm.cancelled == [9]


def test_a_cancelled_job_that_still_ends_is_no_failed_start(rig: Rig) -> None:
    rig.serve(1)
    rig.slurm.set(1, state="COMPLETING")
    rig.paths.memory.unlink()
    rig.restart()
    rig.serve(1)
    assert "failed" not in rig.events()
    assert len(rig.slurm.submissions) == 2


def test_while_slurm_does_not_answer_nothing_changes(rig: Rig) -> None:
    rig.serve(1)
    rig.slurm.silent = True
    assert rig.tick(300).serving == 1
    assert len(rig.plane.table) == 1
    assert rig.events().count("Slurm does not answer") == 1


def test_while_haproxy_does_not_answer_nothing_is_decided(rig: Rig) -> None:
    rig.serve(1)
    rig.set_load(4)
    rig.serve(2)
    rig.plane.dead = True
    rig.set_load(0)
    assert rig.tick(60).serving == 2
    assert rig.slurm.cancelled == []


def test_an_outage_of_haproxy_is_logged_once(rig: Rig) -> None:
    rig.serve(1)
    for dead in (True, False):
        rig.plane.dead = dead
        rig.tick(4)
    assert rig.events()[-2:] == ["data plane does not answer", "data plane answers again"]


def test_a_change_that_haproxy_refuses_does_not_stop_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.set_load(4)
    rig.serve(2)
    first, second = rig.plane.table
    rig.plane.table.clear()
    add = rig.plane.add

    def picky(service: str, endpoint: Endpoint) -> None:
        if endpoint.name == first:
            raise RefusedError("no such backend")
        add(service, endpoint)

    monkeypatch.setattr(rig.plane, "add", picky)
    rig.tick()
    assert list(rig.plane.table) == [second]
    assert rig.events()[-1] == "data plane refused"
    monkeypatch.setattr(rig.plane, "add", add)
    rig.tick()
    assert set(rig.plane.table) == {first, second}


def test_a_new_haproxy_gets_its_replicas_again(rig: Rig) -> None:
    rig.set_load(4)
    rig.serve(2)
    rig.plane.table.clear()
    rig.tick()
    assert len(rig.plane.table) == 2


def test_unknown_servers_in_haproxy_are_removed(rig: Rig) -> None:
    rig.serve(1)
    other = FakePlane()
    other.counters, other.table = rig.plane.counters, dict(rig.plane.table)
    stranger = next(iter(other.table.values()))
    rig.plane.table["chat-stranger"] = stranger.__class__("chat", "chat-stranger", "127.0.0.1", 1, "up", 0)
    rig.tick()
    assert set(rig.plane.table) == set(other.table)


@pytest.mark.parametrize("after", range(12))
def test_a_restart_at_any_moment_starts_nothing_twice(tmp_path: Path, after: int) -> None:
    rig = Rig(tmp_path, scale={"min": 3})
    for second in range(25):
        if second == after:
            rig.restart()
        if second % 2:
            rig.run_all()
        shown = rig.tick()
    assert shown.serving == 3
    assert len(rig.slurm.submissions) == 3


def test_a_restart_without_the_state_file_adopts_from_slurm_alone(rig: Rig) -> None:
    rig.set_load(4)
    rig.serve(2)
    rig.paths.memory.unlink()
    rig.restart()
    shown = rig.tick()
    assert shown.serving == 2
    assert len(rig.slurm.submissions) == 2


def test_a_state_file_that_is_invalid_is_kept_and_replicas_adopted_from_slurm(rig: Rig) -> None:
    rig.set_load(4)
    rig.serve(2)
    rig.paths.memory.write_text('{"replicas": [')
    rig.restart()
    assert rig.tick().serving == 2
    assert len(rig.slurm.submissions) == 2
    (aside,) = rig.paths.root.glob("state.json.invalid-*")
    assert aside.read_text() == '{"replicas": ['


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path)])
def test_what_is_no_state_file_is_not_waited_for(rig: Rig, make: Callable[[Path], None]) -> None:
    rig.set_load(4)
    rig.serve(2)
    rig.paths.memory.unlink()
    make(rig.paths.memory)
    rig.restart()
    assert rig.tick().serving == 2
    (aside,) = rig.paths.root.glob("state.json.invalid-*")
    assert aside.is_symlink() or aside.is_dir()
    assert rig.paths.memory.is_file()


def test_a_gateway_closes_although_its_state_file_cannot_be_read(rig: Rig) -> None:
    rig.set_load(4)
    rig.serve(2)
    rig.paths.memory.unlink()
    rig.paths.memory.symlink_to(UNREADABLE)
    with pytest.raises(GatewayError, match=r"state\.json: cannot be read: Input/output error"):
        rig.restart()
    rig.paths.closing.touch()
    rig.restart()
    rig.tick(6)
    assert rig.slurm.active() == []
    assert rig.plane.table == {}


def test_a_state_file_that_cannot_be_read_for_a_while_is_waited_for(rig: Rig) -> None:
    """A replica that drains, and has a request, would serve again, and how often starts have failed be forgotten."""
    rig.set_load(4)
    rig.serve(2)
    rig.plane.in_flight = dict.fromkeys(rig.plane.table, 1)
    rig.set_load(1)
    rig.tick()
    before, elsewhere = rig.paths.memory.read_bytes(), rig.paths.memory.rename(rig.paths.root / "elsewhere")
    assert b'"draining"' in before
    rig.paths.memory.symlink_to(UNREADABLE)
    with pytest.raises(GatewayError, match=r"state\.json: cannot be read: Input/output error"):
        rig.restart()
    elsewhere.rename(rig.paths.memory)
    rig.restart()
    rig.tick()
    assert b'"draining"' in rig.paths.memory.read_bytes()


def test_a_replica_that_became_ready_while_no_control_plane_was_there_serves(rig: Rig, unready: set[str]) -> None:
    """It was away for longer than `start_limit_s`."""
    unready.add("*")
    rig.tick()
    rig.run_all()
    rig.tick(5)
    rig.now_s += 1800
    unready.clear()
    rig.restart()
    assert rig.tick(5).serving == 1
    assert rig.slurm.cancelled == []


def test_a_minimum_set_by_command_survives_a_restart(rig: Rig) -> None:
    state.save(rig.paths.overrides, {"chat": Override(3, rig.now_s), "gone": Override(5, rig.now_s)})
    rig.serve(3)
    rig.restart()
    assert rig.tick(3).minimum == 3
    assert rig.tick().serving == 3
    assert rig.events().count("minimum set") == 1, "it was not set again"
    assert rig.events().count("control plane started") == 2
    state.save(rig.paths.overrides, {"chat": Override(1, rig.now_s)})
    assert rig.tick(3).serving == 1


def test_slurms_expected_start_is_shown_and_sent_to_clients(rig: Rig) -> None:
    """slurmctld's own estimate for a job that waits, and the configured 30 s for the rest."""
    rig.tick(2)
    (number,) = rig.slurm.known
    assert rig.tick().next_in_s == pytest.approx(30, abs=5), "without an estimate what is configured"
    assert rig.plane.told == []
    rig.slurm.set(number, start_s=rig.now_s + 300)
    shown = rig.tick(2)
    assert shown.next_in_s == pytest.approx(328)
    assert rig.plane.told[-1][1].retry_after_s == 350
    rig.run(number)
    assert rig.tick(2).next_in_s == pytest.approx(29, abs=1), "it loads"
    rig.serve(1)
    assert rig.tick().next_in_s is None


def test_refused_clients_are_told_how_long_a_start_takes_once_that_is_known(rig: Rig) -> None:
    rig.tick(9)
    assert rig.plane.told == [], "what is configured is told already"
    rig.serve(1)
    rig.tick(3)
    (told,) = rig.plane.told
    assert told[0] == "chat"
    assert told[1].retry_after_s >= 9
    rig.plane.process += 1
    rig.tick(2)
    assert rig.plane.told == [told, told], "a new HAProxy does not know"


def test_the_newest_directories_of_ended_replicas_are_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "KEPT_DIRECTORIES", 2)
    for number in range(5):
        directory = rig.paths.replica(f"chat-old{number}")
        directory.mkdir()
        os.utime(directory, (number, number))
    rig.serve(1)
    left = {path.name for path in (rig.paths.root / "replicas").iterdir()}
    assert {name for name in left if "old" in name} == {"chat-old3", "chat-old4"}
    assert len(left) == 3

    remove = shutil.rmtree

    def refuse(path: Path) -> None:
        if path.name == "chat-old3":
            raise OSError(13, "Permission denied", "chat-old3")
        remove(path)

    monkeypatch.setattr(control_plane, "KEPT_DIRECTORIES", 0)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    rig.set_load(4)
    assert rig.tick(2).coming == 1, "what cannot be tidied up is no obstacle"
    assert "old files not removed" in rig.events()
    left = {path.name for path in (rig.paths.root / "replicas").iterdir()}
    assert {name for name in left if "old" in name} == {"chat-old3"}, "nor to tidying up the others"


def test_a_replica_whose_directory_cannot_be_made_is_not_submitted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, *_: object) -> None:
        raise OSError(28, "No space left on device", f"/state/{name}")

    monkeypatch.setattr(submission, "prepare", full)
    assert rig.tick(3).coming == 0
    assert rig.slurm.submissions == []
    assert rig.events().count("files not written") == 1


def test_replicas_start_soon_after_a_full_disk_has_room_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")  # writing to an open file names none

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        assert not rig.tick(600).given_up
        assert list((rig.paths.root / "replicas").iterdir()) == []
    events = [json.loads(line) for line in rig.paths.events.read_text().splitlines()]
    found = [event for event in events if event["event"] == "files not written"]
    assert {event["reason"] for event in found} == {
        f"{rig.paths.replica(event['replica'])}: No space left on device" for event in found
    }
    rig.tick(30)
    assert len(rig.slurm.submissions) == 1


def test_the_state_file_is_written_when_something_has_changed(rig: Rig) -> None:
    """Each time costs a wait for the disk."""
    rig.serve(1)
    rig.tick(3)
    before = rig.paths.memory.stat().st_ino
    rig.tick(5)
    assert rig.paths.memory.stat().st_ino == before
    rig.set_load(4)
    rig.tick()
    assert rig.paths.memory.stat().st_ino != before


def test_a_half_written_state_file_is_ignored(rig: Rig) -> None:
    rig.serve(1)
    rig.paths.memory.write_bytes(b'{"replicas": [{"serv')
    rig.restart()
    assert rig.tick().serving == 1


def test_draining_continues_after_a_restart(rig: Rig) -> None:
    rig.set_load(4)
    rig.serve(2)
    rig.plane.in_flight = dict.fromkeys(rig.plane.table, 1)
    rig.set_load(1)
    assert rig.tick().draining == 1
    rig.restart()
    assert rig.tick().draining == 1
    rig.plane.in_flight = {}
    rig.tick(3)
    assert len(rig.slurm.cancelled) == 1


def test_scale_in_is_held_after_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path, scale={"hold_s": 60})
    rig.set_load(8)
    rig.serve(4)
    rig.restart()
    rig.set_load(0)
    assert rig.tick(55).serving == 4
    assert "held" in rig.tick().reason
    rig.tick(10)
    assert rig.tick(5).serving == 1


def test_a_job_of_a_service_that_is_gone_is_cancelled(rig: Rig) -> None:
    rig.slurm.known[9] = job(9, "old-1", "igw:g:old:abcd1234", state="RUNNING")
    rig.restart()
    rig.tick(2)
    assert rig.slurm.cancelled == [9]


def test_a_cancellation_that_slurm_refuses_is_logged_and_repeated(rig: Rig) -> None:
    rig.serve(1)
    rig.paths.closing.touch()
    rig.slurm.refusal = "Access/permission denied"
    rig.tick(62)
    assert rig.events().count("cancellation refused") == 1
    rig.slurm.refusal = ""
    rig.tick(5)
    assert rig.slurm.cancelled == [1]


def test_the_report_is_written_for_other_processes(rig: Rig) -> None:
    shown = rig.tick()
    read = state.read(rig.paths.status, Report)
    assert read is not None
    assert (read.services, read.time_s, read.closing) == ((shown,), rig.now_s, False)
    rig.paths.closing.touch()
    rig.tick()
    closing = state.read(rig.paths.status, Report)
    assert closing is not None
    assert closing.closing


def test_jobs_of_another_gateway_are_left_alone(rig: Rig) -> None:
    rig.slurm.known[9] = job(9, "chat-1", "igw:other:chat:abcd1234", state="RUNNING")
    rig.restart()
    rig.tick(70)
    assert rig.slurm.cancelled == []


def test_a_replica_near_its_time_limit_serves_until_its_successor_does(rig: Rig) -> None:
    rig.serve(1)
    (old,) = rig.plane.table
    rig.now_s += 3600 - 62  # less is left than a start (some seconds here) and the drain deadline (60 s) take
    shown = rig.tick(2)
    assert (shown.serving, shown.coming) == (1, 1)
    assert rig.plane.table[old].state == "up"
    rig.plane.in_flight = {old: 1}
    for _ in range(5):
        rig.run_all()
        rig.tick()
    assert sorted(server.state for server in rig.plane.table.values()) == ["draining", "up"]
    assert rig.plane.table[old].state == "draining"
    rig.plane.in_flight = {}
    assert rig.tick(3).serving == 1
    assert old not in rig.plane.table


def test_a_time_limit_shorter_than_the_notice_does_not_replace_for_ever(rig: Rig) -> None:
    rig.tick()
    rig.slurm.set(1, time_limit_s=60.0)
    rig.serve(1)
    rig.tick(25)
    assert len(rig.slurm.submissions) == 1


def test_a_changed_command_replaces_replicas_one_for_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path, scale={"min": 2}, replica={"burst_qos": "low"})
    rig.serve(2)
    old = set(rig.plane.table)
    again = Rig(tmp_path, scale={"min": 2}, replica={"command": "serve2 {port}", "burst_qos": "low"})
    again.slurm, again.plane, again.now_s = rig.slurm, rig.plane, rig.now_s
    again.restart()
    for _ in range(10):
        again.run_all()
        assert again.tick().serving >= 2
    assert again.tick().serving == 2
    assert len(again.plane.table) == 2
    assert not old & set(again.plane.table)
    assert len(again.slurm.submissions) == 4
    assert not any("--requeue" in options for _script, options in again.slurm.submissions)


def test_the_last_tokens_count_where_the_gateway_ends_with_its_last_replica(rig: Rig) -> None:
    rig.serve(1)
    [name] = rig.plane.table
    counter = reports.UsageCounter()
    counter.add("alice", reports.Tokens(1, 10, 20))
    rig.paths.closing.touch()
    rig.slurm.set(1, state="CANCELLED")
    while rig.tick().replicas:
        pass
    counter.write(rig.paths.replica(name))
    rig.control.end(rig.now_s)
    assert [entry.tokens for entry in usage.read(rig.paths).days] == [reports.Tokens(1, 10, 20)]


def test_closing_drains_everything_and_starts_nothing(rig: Rig) -> None:
    rig.set_load(4)
    rig.serve(2)
    rig.paths.closing.touch()
    rig.tick(6)
    assert rig.slurm.active() == []
    assert rig.plane.table == {}


def test_requests_that_come_while_it_closes_are_told_that_no_replica_will_start(rig: Rig) -> None:
    rig.serve(1)
    rig.plane.in_flight = dict.fromkeys(rig.plane.table, 1)
    rig.paths.closing.touch()
    assert rig.tick().draining == 1
    assert rig.plane.told[-1][1].given_up
    rig.paths.closing.unlink()
    rig.tick()
    assert not rig.plane.told[-1][1].given_up


def test_a_full_disk_stops_neither_scaling_nor_traffic(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.serve(1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    rig.set_load(4)
    assert rig.tick(3).coming == 1
    rig.plane.table.clear()
    rig.tick()
    assert len(rig.plane.table) == 1
    monkeypatch.undo()


def test_burst_replicas_go_to_the_burst_qos(tmp_path: Path) -> None:
    rig = Rig(tmp_path, replica={"qos": "normal", "burst_qos": "scavenger"})
    rig.set_load(6)
    rig.tick(2)
    options = [options for _script, options in rig.slurm.submissions]
    assert ["--qos=normal" in given for given in options] == [True, False, False]
    assert all("--qos=scavenger" in given and "--requeue" in given for given in options[1:])
    assert "--no-requeue" in options[0]


@pytest.mark.parametrize(
    ("starts_s", "chosen"),
    [
        ({"normal": 1000.0, "high": 900.0}, "high"),
        ({"normal": 1000.0, "high": 970.0}, "normal"),  # hardly sooner
        ({"high": 5000.0}, "high"),
        ({}, "normal"),
    ],
)
def test_of_several_qos_a_replica_gets_the_one_that_starts_it_soonest(
    tmp_path: Path, starts_s: dict[str, float], chosen: str
) -> None:
    rig = Rig(tmp_path, replica={"qos": "normal,high"})
    rig.slurm.starts_s = starts_s
    rig.tick(2)
    ((_script, options),) = rig.slurm.submissions
    assert [option for option in options if option.startswith("--qos=")] == [f"--qos={chosen}"]


def test_a_replica_that_stays_sick_is_replaced(tmp_path: Path) -> None:
    rig = Rig(tmp_path, health={"down_limit_s": 30})
    rig.serve(1)
    (name,) = rig.plane.table
    server = rig.plane.table[name]
    rig.plane.table[name] = server.__class__("chat", name, server.host, server.port, "down", 0)
    rig.tick(25)
    assert rig.slurm.cancelled == []
    rig.tick(10)
    assert rig.slurm.cancelled == [1]


def test_between_two_seconds_only_the_rules_of_services_that_called_decide(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would take a part of a second for one, and so a fraction of their load for all."""
    rig.section.services["other"] = rig.section.services["chat"]
    rig.plane.counters["other"] = Traffic("other", 0, 0, 0, 0)
    rig.restart()
    asked: list[str] = []
    decide = ServiceControl.decide

    def noted(self: ServiceControl, *arguments: Any) -> Any:
        asked.append(self.name)
        return decide(self, *arguments)

    monkeypatch.setattr(ServiceControl, "decide", noted)
    rig.control.tick(rig.now_s + 1)
    rig.control.tick(rig.now_s + 1.5, frozenset({"chat"}))
    assert asked == ["chat", "other", "chat"]


@pytest.mark.parametrize("under_way", [False, None])
def test_a_sick_replica_that_the_data_plane_keeps_in_is_replaced_by_a_new_one(
    tmp_path: Path, *, under_way: bool | None
) -> None:
    """It is down for a moment after some failed checks, and then up again, as it is the only one."""
    rig = Rig(tmp_path, health={"down_limit_s": 30})
    rig.serve(1)
    (name,) = rig.plane.table
    for second in range(35):
        state, passed = ("down", False) if second % 6 == 5 else ("up", under_way if second % 6 else False)
        rig.plane.table[name] = replace(rig.plane.table[name], state=state, passed=passed)
        assert (rig.tick().serving, rig.slurm.cancelled) == (1, [])
    assert len(rig.slurm.submissions) == 2
    rig.run_all()
    rig.tick(6)
    assert rig.slurm.cancelled == [1]
    assert name not in rig.plane.table
    assert "failing" in rig.events()


def test_a_replica_that_passes_a_check_in_time_is_not_replaced(tmp_path: Path) -> None:
    rig = Rig(tmp_path, health={"down_limit_s": 30})
    rig.serve(1)
    (name,) = rig.plane.table
    for second in range(100):
        rig.plane.table[name] = replace(rig.plane.table[name], passed=second % 20 == 0)
        rig.tick()
    assert len(rig.slurm.submissions) == 1
