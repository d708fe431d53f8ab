"""Replicas that expire, because of their time limit or of a new configuration, serve until their successors do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference_gateway.control import state
from inference_gateway.control.moves import ClassifiedReplicas
from inference_gateway.control.replica import Phase
from inference_gateway.control.report import ServiceReport
from inference_gateway.control.state import Attempts, Memory
from inference_gateway.model import Traffic
from inference_gateway.replicas import reports
from tests.inference_gateway.control.doubles import Rig
from tests.inference_gateway.control.test_moves import replica, sorted_out

NOTICE_S = 62
"""Less than a start (some seconds here) and the drain deadline (60 s)."""


def busy(directory: Path, rule: str, in_flight: int, **scale: Any) -> Rig:
    """As many replicas as the rule wants where one answers a request per second. `in_flight` come in two seconds."""
    rig = Rig(directory, requests_per_s=1.0, scale={"rule": rule, "options": {}, "max": 16, "max_pending": 16, **scale})
    for _ in range(240 if rule in ("dilu", "target") else 80):
        rig.run_all()
        second(rig, in_flight)
    rig.plane.in_flight = dict.fromkeys(rig.plane.table, 2)
    return rig


def second(rig: Rig, in_flight: int) -> ServiceReport:
    rig.arrived += in_flight // 2
    rig.plane.counters = {"chat": Traffic("chat", rig.arrived, 0, in_flight, 0)}
    return rig.tick()


def end_soon(rig: Rig, jobs: int) -> None:
    """Of so many jobs the time limit comes near."""
    for number in sorted(number for number, found in rig.slurm.known.items() if found.state == "RUNNING")[:jobs]:
        rig.slurm.set(number, start_s=rig.now_s - 3600 + NOTICE_S, time_limit_s=3600.0)


def with_command(rig: Rig, command: str) -> None:
    """As `gateway reload` of a changed services file does."""
    chat = rig.section.services["chat"]
    changed = msgspec.structs.replace(chat, replica=msgspec.structs.replace(chat.replica, command=command))
    rig.section = msgspec.structs.replace(rig.section, services={"chat": changed})
    rig.restart()


def replaced(rig: Rig, in_flight: int, old: int, start: Callable[[], object]) -> None:
    """Until all jobs are new ones; meanwhile no fewer replicas serve than the `old` ones did."""
    before = set(rig.plane.table)
    for _ in range(120):
        start()
        shown = second(rig, in_flight)
        assert shown.serving >= old
        rig.plane.in_flight = {name: 2 for name, server in rig.plane.table.items() if server.state == "up"}
        if not before & set(rig.plane.table):
            return
    raise AssertionError("they are not replaced")


@pytest.mark.parametrize("rule", ["slurm", "target", "knative", "dilu"])
def test_an_expiring_replica_stays_until_its_successor_serves(tmp_path: Path, rule: str) -> None:
    rig = busy(tmp_path, rule, 6)
    before = second(rig, 6)
    submitted = len(rig.slurm.submissions)
    end_soon(rig, 1)
    for _ in range(30):
        shown = second(rig, 6)
        assert (shown.serving, shown.draining) == (before.serving, 0)
        assert shown.coming <= 1
    assert shown.coming == 1
    rig.run_all()
    for _ in range(5):
        shown = second(rig, 6)
        assert shown.serving >= before.serving
    assert (shown.serving, shown.draining) == (before.serving, 1)
    assert len(rig.slurm.submissions) == submitted + 1


def test_the_signal_of_its_time_limit_finds_a_replica_replaced(tmp_path: Path) -> None:
    """Whatever the drain deadline: Slurm sends it 120 s before the end, or up to a minute earlier."""
    rig = Rig(tmp_path, drain_deadline_s=30)
    rig.serve(1)
    (number,) = rig.slurm.known
    rig.slurm.set(number, start_s=rig.now_s - 3600 + 240, time_limit_s=3600.0)
    for _ in range(60):
        assert rig.tick().serving >= 1
        rig.run_all()
    reports.leave(rig.paths.replica(rig.slurm.known[number].name))
    assert rig.tick(3).serving == 1


@pytest.mark.parametrize("max_up", [2.0, 10.0])
def test_what_a_rule_multiplies_is_what_serves_while_all_expire(tmp_path: Path, max_up: float) -> None:
    """Their successors have been requested, and none serves yet."""
    rig = busy(tmp_path, "knative", 16, options={"max_up": max_up})
    before = second(rig, 16)
    end_soon(rig, before.serving)
    for _ in range(10):
        shown = second(rig, 16)
        assert (shown.serving, shown.draining) == (before.serving, 0)
    assert shown.coming == before.serving


def test_a_service_that_was_given_up_stays_so_when_it_scales_in(tmp_path: Path) -> None:
    """That a replica has served for days says nothing of the starts that failed since."""
    rig = Rig(tmp_path, scale={"attempts": 2})
    rig.set_load(6)
    rig.serve(3)
    for _ in range(70):
        rig.tick()
    rig.set_load(8)
    for _ in range(300):
        shown = rig.tick()
        for job in rig.slurm.active():
            if job.state == "PENDING":
                rig.slurm.set(job.job_id, state="FAILED", reason="NonZeroExitCode")
        if shown.given_up:
            break
    submitted = len(rig.slurm.submissions)
    rig.set_load(4)
    while not rig.tick().draining:
        pass
    rig.set_load(8)
    for _ in range(60):
        assert rig.tick().given_up
    assert len(rig.slurm.submissions) == submitted


@pytest.mark.parametrize("minimum", [0, 1])
@pytest.mark.parametrize("rule", ["slurm", "target", "knative", "dilu"])
def test_a_new_configuration_ends_no_replica_before_its_successor_serves(
    tmp_path: Path, rule: str, minimum: int
) -> None:
    rig = busy(tmp_path, rule, 16, min=minimum, hold_s=60)
    old = second(rig, 16).serving
    assert old > 7
    with_command(rig, "serve2 --port {port}")
    for _ in range(5):
        shown = second(rig, 16)
        assert (shown.serving, shown.coming, shown.draining) == (old, old, 0)
    replaced(rig, 16, old, rig.run_all)


def test_a_new_command_that_does_not_start_ends_no_replica(tmp_path: Path) -> None:
    rig = busy(tmp_path, "slurm", 16, attempts=2)
    before = second(rig, 16)
    with_command(rig, "serve --typo --port {port}")
    for _ in range(300):
        shown = second(rig, 16)
        assert shown.serving == before.serving
        for found in rig.slurm.active():
            if found.state == "PENDING":
                rig.slurm.set(found.job_id, state="FAILED", reason="NonZeroExitCode")
    assert shown.given_up


def test_failed_starts_count_for_the_configuration_that_failed(tmp_path: Path) -> None:
    """Each `with_command` is a reload; that of the same text changes nothing."""
    rig = Rig(tmp_path, scale={"attempts": 2})
    fail_until_given_up(rig)
    submitted = len(rig.slurm.submissions)
    for _ in range(2):
        with_command(rig, "serve --port {port}")
        assert rig.tick(10).given_up
    assert len(rig.slurm.submissions) == submitted
    with_command(rig, "serve --mended --port {port}")
    assert not rig.tick().given_up
    assert len(rig.slurm.submissions) == submitted + 1
    told = dict(rig.plane.told)
    assert not told["chat"].given_up, "HAProxy and the activator remember what the process before told them"


def test_an_up_lets_a_service_that_was_given_up_try_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, scale={"attempts": 2})
    fail_until_given_up(rig)
    rig.restart()
    assert rig.tick().given_up, "a handover alone mends nothing"
    before = state.read(rig.paths.memory, Memory)
    state.begin_anew(rig.paths)
    rig.restart()
    assert not rig.tick().given_up
    after = state.read(rig.paths.memory, Memory)
    assert before is not None
    assert after is not None
    assert after.services["chat"] == replace(before.services["chat"], attempts=Attempts())


def fail_until_given_up(rig: Rig) -> None:
    """Every job fails as soon as Slurm has it."""
    for _ in range(100):
        if rig.tick().given_up:
            return
        for found in rig.slurm.active():
            rig.slurm.set(found.job_id, state="FAILED", reason="NonZeroExitCode")
    raise AssertionError("it does not give up")


@pytest.mark.parametrize("rule", ["slurm", "target", "knative", "dilu"])
def test_replicas_that_end_together_are_replaced_a_few_at_a_time(tmp_path: Path, rule: str) -> None:
    rig = busy(tmp_path, rule, 16, max_pending=2)
    old = second(rig, 16).serving
    assert old > 7
    end_soon(rig, old)
    second(rig, 16)  # jobs are listed after the decision
    for _ in range(5):
        shown = second(rig, 16)
        assert (shown.serving, shown.coming, shown.draining) == (old, 2, 0)
    replaced(rig, 16, old, rig.run_all)


def test_a_restart_while_successors_start_asks_for_no_more_of_them(tmp_path: Path) -> None:
    rig = busy(tmp_path, "slurm", 16, hold_s=60)
    end_soon(rig, 3)
    for _ in range(5):
        second(rig, 16)
    submitted = len(rig.slurm.submissions)
    before = second(rig, 16)
    rig.restart()
    for _ in range(5):
        assert second(rig, 16).serving == before.serving
    assert (before.coming, len(rig.slurm.submissions)) == (3, submitted)


def test_the_last_replica_is_replaced_while_the_service_may_not_go_to_zero_yet(tmp_path: Path) -> None:
    rig = busy(tmp_path, "slurm", 2, min=0)
    end_soon(rig, 2)
    rig.plane.in_flight = {}
    rig.set_load(0)
    before = rig.tick()
    for _ in range(30):
        shown = rig.tick()
        assert (shown.serving, shown.draining) == (before.serving, 0)
    rig.run_all()
    assert rig.tick(300).serving >= 1
    assert rig.tick(400).serving == 0


def test_what_is_left_of_a_lowered_maximum_is_replaced_within_it(tmp_path: Path) -> None:
    rig = busy(tmp_path, "slurm", 16, hold_s=60)
    chat = rig.section.services["chat"]
    lower = msgspec.structs.replace(chat, scale=msgspec.structs.replace(chat.scale, max=4))
    rig.section = msgspec.structs.replace(rig.section, services={"chat": lower})
    with_command(rig, "serve2 --port {port}")
    assert second(rig, 16).coming == 4


def classified(serving: int, coming: int, expiring: int) -> ClassifiedReplicas:
    return sorted_out(
        *(replica(f"s{number}") for number in range(serving)),
        *(replica(f"c{number}", Phase.STARTING) for number in range(coming)),
        *(replica(f"e{number}", generation="g0") for number in range(expiring)),
    )


@pytest.mark.parametrize(
    ("serving", "coming", "expiring", "wanted", "unreplaced"),
    [
        (4, 0, 1, 5, 1),
        (4, 1, 1, 5, 0),
        (5, 0, 1, 5, 0),
        (4, 0, 1, 9, 1),
        (4, 0, 2, 3, 0),
        (2, 2, 8, 10, 6),
        (0, 0, 10, None, 10),
        (4, 1, 1, None, 0),
        (4, 3, 1, None, 0),
    ],
)
def test_expiring_replicas_without_a_successor_are_those_missing_of_the_wanted_ones(
    serving: int, coming: int, expiring: int, wanted: int | None, unreplaced: int
) -> None:
    assert classified(serving, coming, expiring).unreplaced(wanted) == unreplaced
