"""The life of one replica, step by step: what each witness leads to, and when a time is over."""

from dataclasses import replace
from typing import Any

import pytest

from inference_gateway.control.replica import (
    AGAIN_S,
    ASKED_S,
    LOST_AFTER_S,
    YOUNG_S,
    Limits,
    Phase,
    Replica,
    ReplicaObservation,
    Step,
    step,
)
from inference_gateway.replicas.reports import Registration
from slurm_plugin.client.records import SlurmJob
from tests.inference_gateway.control.doubles import job

NOW_S = 1_000_000.0
LIMITS = Limits(start_limit_s=100.0, drain_deadline_s=50.0, down_limit_s=20.0)
LIVING = (Phase.PENDING, Phase.STARTING, Phase.SERVING)


def replica(phase: Phase, since_s: float = NOW_S, **fields: Any) -> Replica:
    """Asked for ten seconds before its phase began; as the job below is listed."""
    known = {"job_id": 7, "limit_s": 3600.0, "reason": "", **fields}
    return Replica("chat", "chat-1", "g1", phase, since_s, since_s - 10, **known)


def listed(state: str, **fields: Any) -> SlurmJob:
    return job(7, "chat-1", "igw:g:chat:g1", state=state, **fields)


def seen(found: SlurmJob | None, **fields: Any) -> ReplicaObservation:
    return ReplicaObservation(found, **{"listed_s": NOW_S, **fields})


def after(one: Replica, observations: ReplicaObservation, now_s: float = NOW_S) -> Step:
    return step(one, observations, LIMITS, now_s)


def phase_after(one: Replica, observations: ReplicaObservation, now_s: float = NOW_S) -> Phase | None:
    done = after(one, observations, now_s).replica
    return done.phase if done else None


class TestASubmissionWithoutAJob:
    ASKED = Replica("chat", "chat-1", "g1", Phase.SUBMITTING, NOW_S, NOW_S)

    @pytest.mark.parametrize(("listed_after_s", "after_s"), [(LOST_AFTER_S, 900), (900, LOST_AFTER_S), (-1, 900)])
    def test_a_submission_waits_while_no_late_listing_is_there(self, listed_after_s: float, after_s: float) -> None:
        """Time alone proves nothing while Slurm does not answer: the listing has to be as late."""
        done = after(self.ASKED, seen(None, listed_s=NOW_S + listed_after_s), NOW_S + after_s)
        assert done == Step(self.ASKED)

    def test_a_submission_missing_in_a_late_listing_is_lost(self) -> None:
        done = after(self.ASKED, seen(None, listed_s=NOW_S + LOST_AFTER_S + 1), NOW_S + LOST_AFTER_S + 2)
        assert (done.replica, done.event, done.failed, done.refused) == (None, "lost", False, True)

    def test_a_job_that_slurm_lists_with_another_name_has_failed(self) -> None:
        """Each start would leave one."""
        asked = replace(self.ASKED, job_id=7)
        done = after(asked, seen(None, listed_s=NOW_S + LOST_AFTER_S + 1), NOW_S + LOST_AFTER_S + 2)
        assert done.replica is not None
        assert (done.replica.phase, done.failed, done.refused) == (Phase.ENDING, True, False)

    @pytest.mark.parametrize(("state", "phase"), [("PENDING", Phase.PENDING), ("RUNNING", Phase.STARTING)])
    def test_a_submitted_job_is_recognised_by_its_name(self, state: str, phase: Phase) -> None:
        done = after(self.ASKED, seen(listed(state, time_limit_s=60.0))).replica
        assert done is not None
        assert (done.phase, done.job_id, done.limit_s, done.since_s) == (phase, 7, 60.0, NOW_S)


class TestAJobThatSlurmDoesNotList:
    @pytest.mark.parametrize("phase", [*LIVING, Phase.DRAINING, Phase.ENDING])
    def test_an_earlier_listing_changes_nothing(self, phase: Phase) -> None:
        one = replica(phase)
        assert after(one, seen(None, listed_s=one.since_s), NOW_S + 9) == Step(one)

    @pytest.mark.parametrize("phase", [*LIVING, Phase.DRAINING, Phase.ENDING])
    def test_a_job_missing_in_a_later_listing_has_ended(self, phase: Phase) -> None:
        assert after(replica(phase), seen(None, listed_s=NOW_S + 1), NOW_S + 2).replica is None

    def test_a_listing_from_before_the_submission_changes_nothing(self) -> None:
        one = replace(replica(Phase.PENDING), asked_s=NOW_S + 5)
        assert after(one, seen(None, listed_s=NOW_S + 3), NOW_S + 9) == Step(one)


class TestTheEndOfAJob:
    @pytest.mark.parametrize("state", ["FAILED", "COMPLETED", "COMPLETING", "TIMEOUT", "NODE_FAIL", "CANCELLED"])
    @pytest.mark.parametrize("phase", LIVING)
    def test_an_ended_job_ends_its_replica_in_any_phase(self, state: str, phase: Phase) -> None:
        done = after(replica(phase), seen(listed(state)), NOW_S + 1)
        assert (done.replica, done.event, done.failed) == (None, "failed", True)

    @pytest.mark.parametrize("phase", [Phase.PENDING, Phase.STARTING])
    def test_a_replica_that_never_served_has_failed_at_any_age(self, phase: Phase) -> None:
        assert after(replica(phase), seen(listed("FAILED")), NOW_S + 10_000).failed

    def test_a_replica_that_served_for_long_has_died_and_not_failed(self) -> None:
        young = after(replica(Phase.SERVING), seen(listed("FAILED")), NOW_S + YOUNG_S - 1)
        old = after(replica(Phase.SERVING), seen(listed("FAILED")), NOW_S + YOUNG_S)
        assert [(one.event, one.failed) for one in (young, old)] == [("failed", True), ("died", False)]

    @pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.ENDING])
    def test_a_draining_replica_whose_job_ends_keeps_its_reason(self, phase: Phase) -> None:
        done = after(replica(phase, reason="not needed"), seen(listed("CANCELLED")), NOW_S + 1)
        assert (done.replica, done.event, done.reason, done.failed) == (None, "ended", "not needed", False)

    @pytest.mark.parametrize(("reason", "words"), [("NodeDown", "job FAILED (NodeDown)"), ("None", "job FAILED")])
    def test_slurms_reason_is_in_the_event(self, reason: str, words: str) -> None:
        assert after(replica(Phase.SERVING), seen(listed("FAILED", reason=reason))).reason == words
        assert after(replica(Phase.DRAINING), seen(listed("FAILED", reason=reason))).reason == words


class TestAJobThatWaits:
    @pytest.mark.parametrize("state", ["PENDING", "REQUEUED"])
    def test_a_pending_replica_keeps_the_time_since_which_it_waits(self, state: str) -> None:
        one = replica(Phase.PENDING)
        assert after(one, seen(listed(state, restarts=2)), NOW_S + 500) == Step(replace(one, restarts=2))

    @pytest.mark.parametrize("phase", [Phase.STARTING, Phase.SERVING])
    def test_a_requeued_replica_is_pending_without_an_address(self, phase: Phase) -> None:
        one = replica(phase, host="n1", port=20001, ends_s=NOW_S + 9, sick_s=NOW_S)
        done = after(one, seen(listed("PENDING", restarts=1, reason="Preempted")), NOW_S + 5)
        waiting = replace(replica(Phase.PENDING, NOW_S + 5, restarts=1), asked_s=NOW_S + 5)
        assert done == Step(waiting, "requeued", "by Slurm (Preempted)")

    @pytest.mark.parametrize("phase", [Phase.SUBMITTING, *LIVING])
    def test_a_requeued_job_is_cleaned_up_before_it_waits(self, phase: Phase) -> None:
        """As Slurm shows it: COMPLETING, with one restart more, for as long as the processes of the last run take."""
        one: Replica | None = replica(phase, since_s=NOW_S - 9)
        for second, state in ((1, "COMPLETING"), (2, "COMPLETING"), (3, "PENDING"), (4, "PENDING")):
            assert one is not None
            done = after(one, seen(listed(state, restarts=1, reason="Preempted")), NOW_S + second)
            assert not done.failed
            one = done.replica
        assert one is not None
        assert (one.phase, one.restarts) == (Phase.PENDING, 1)
        assert after(one, seen(listed("COMPLETING", restarts=1)), NOW_S + 5).failed, "this run is the last one"

    def test_a_draining_replica_whose_job_is_requeued_is_cancelled(self) -> None:
        one = after(replica(Phase.DRAINING), seen(listed("COMPLETING", restarts=1)), NOW_S + 5).replica
        assert one is not None
        assert one.phase is Phase.ENDING

    @pytest.mark.parametrize("phase", [Phase.SUBMITTING, *LIVING])
    @pytest.mark.parametrize(
        "reason",
        [
            "launch failed requeued held",
            "launch_failed_requeued_held",
            "user env retrieval failed requeued held",
            "JobHoldMaxRequeue",
            "launch failure limit exceeded requeued held",
            "Reservation r_2 was deleted",
            "Reservation_r_2_was_deleted",
            "Reservation (null) is invalid",
        ],
    )
    def test_a_job_that_slurm_holds_for_good_is_cancelled(self, phase: Phase, reason: str) -> None:
        done = after(replica(phase), seen(listed("PENDING", restarts=1, reason=reason)), NOW_S + 5)
        assert done.replica is not None
        assert (done.replica.phase, done.replica.since_s, done.failed) == (Phase.ENDING, NOW_S + 5, True)

    def test_a_job_that_its_owner_holds_waits(self) -> None:
        one = replica(Phase.PENDING)
        assert after(one, seen(listed("PENDING", reason="JobHeldUser")), NOW_S + 500) == Step(one)

    def test_a_draining_replica_that_waits_again_is_cancelled(self) -> None:
        one = after(replica(Phase.DRAINING), seen(listed("PENDING"), in_flight=3), NOW_S + 5).replica
        assert one is not None
        assert (one.phase, one.since_s) == (Phase.ENDING, NOW_S + 5)

    @pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
    def test_a_cancelled_replica_is_cancelled_again_after_a_while(self, state: str) -> None:
        one = replica(Phase.ENDING, reason="why")
        assert after(one, seen(listed(state)), NOW_S + AGAIN_S) == Step(one)
        again = after(one, seen(listed(state)), NOW_S + AGAIN_S + 1)
        assert again == Step(replace(one, since_s=NOW_S + AGAIN_S + 1), "cancelled again", "why")


class TestAJobThatRuns:
    @pytest.mark.parametrize("state", ["RUNNING", "CONFIGURING", "SUSPENDED"])
    def test_a_pending_replica_whose_job_runs_is_starting(self, state: str) -> None:
        done = after(replica(Phase.PENDING), seen(listed(state, start_s=NOW_S - 3, restarts=1)), NOW_S + 5)
        started = replace(replica(Phase.PENDING, restarts=1, ends_s=NOW_S + 3597).to(Phase.STARTING, NOW_S + 5))
        assert done == Step(started, "started", started=True)

    def test_a_changed_time_limit_changes_the_end_of_a_replica(self) -> None:
        one = replica(Phase.SERVING, ends_s=NOW_S + 3600)
        done = after(one, seen(listed("RUNNING", start_s=NOW_S, time_limit_s=100.0))).replica
        assert done == replace(one, limit_s=100.0, ends_s=NOW_S + 100)
        assert after(one, seen(listed("RUNNING", start_s=NOW_S, time_limit_s=None))).replica == replace(
            one, limit_s=None
        )

    def test_a_replica_ends_later_by_the_time_it_was_suspended(self) -> None:
        one = replica(Phase.SERVING, ends_s=NOW_S + 3600, limit_s=3600.0)
        resumed = listed("RUNNING", start_s=NOW_S, time_limit_s=3600.0, suspended_s=60.0)
        assert after(one, seen(resumed)).replica == replace(one, ends_s=NOW_S + 3660)

    @pytest.mark.parametrize("phase", [Phase.STARTING, Phase.SERVING])
    def test_a_replica_requeued_between_two_listings_starts_again(self, phase: Phase) -> None:
        one = replica(phase, host="n1", port=20001)
        done = after(one, seen(listed("RUNNING", restarts=1), answered=True), NOW_S + 5)
        again = replace(replica(Phase.PENDING, restarts=1), asked_s=NOW_S + 5)
        assert done == Step(again.to(Phase.STARTING, NOW_S + 5), "requeued")

    @pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.ENDING])
    def test_a_replica_that_is_to_end_does_not_come_back_by_a_requeue(self, phase: Phase) -> None:
        one = replica(phase, host="n1", port=20001)
        assert phase_after(one, seen(listed("RUNNING", restarts=1), answered=True), NOW_S + 5) is Phase.ENDING

    def test_a_replica_serves_once_it_has_registered_and_answers(self) -> None:
        one = replica(Phase.STARTING)
        told = Registration("n1", 20001, 7)
        with_place = replace(one, host="n1", port=20001)
        assert after(one, seen(listed("RUNNING"), registration=told)) == Step(with_place)
        assert after(one, seen(listed("RUNNING"), answered=True)) == Step(one), "nobody knows where it is"
        done = after(one, seen(listed("RUNNING"), registration=told, answered=True), NOW_S + 5)
        assert done == Step(with_place.to(Phase.SERVING, NOW_S + 5), "serving", served_after_s=15.0)

    @pytest.mark.parametrize("told", [Registration("n1", 20001, 6), Registration("n1", 20001, 7, restarts=1)])
    def test_the_registration_of_another_job_or_run_is_ignored(self, told: Registration) -> None:
        one = replica(Phase.STARTING)
        assert after(one, seen(listed("RUNNING"), registration=told, answered=True)) == Step(one)

    def test_a_start_that_takes_too_long_has_failed(self) -> None:
        one = replica(Phase.STARTING)
        assert after(one, seen(listed("RUNNING")), NOW_S + 100) == Step(one)
        done = after(one, seen(listed("RUNNING")), NOW_S + 101)
        assert done.replica == one.to(Phase.ENDING, NOW_S + 101, "not ready 100 s after its job started")
        assert (done.event, done.failed) == ("failed", True)

    def test_time_for_which_its_job_was_suspended_is_not_of_its_start(self) -> None:
        one = replica(Phase.STARTING)
        assert not after(one, seen(listed("SUSPENDED", suspended_s=0.0)), NOW_S + 900).failed
        resumed = seen(listed("RUNNING", suspended_s=800.0))
        assert not after(one, resumed, NOW_S + 900).failed
        assert after(one, resumed, NOW_S + 901).failed

    def test_a_start_has_not_failed_before_a_new_control_plane_has_asked_for_a_while(self) -> None:
        one, new = replica(Phase.STARTING), replace(LIMITS, adopted_s=NOW_S + 900)
        assert step(one, seen(listed("RUNNING")), new, NOW_S + 900 + ASKED_S) == Step(one)
        assert step(one, seen(listed("RUNNING")), new, NOW_S + 901 + ASKED_S).failed

    def test_a_replica_that_gets_the_signal_to_end_is_drained(self) -> None:
        one = replica(Phase.SERVING)
        done = after(one, seen(listed("RUNNING"), leaving=True, server_up=False), NOW_S + 5)
        assert done.replica == one.to(Phase.DRAINING, NOW_S + 5, "its job received the signal to end")
        assert (done.event, done.failed) == ("draining", False)

    def test_a_replica_that_stays_down_is_cancelled(self) -> None:
        one = replica(Phase.SERVING)
        sick = replace(one, sick_s=NOW_S + 5)
        assert after(one, seen(listed("RUNNING"), server_up=False), NOW_S + 5) == Step(sick)
        assert after(sick, seen(listed("RUNNING"), server_up=False), NOW_S + 25) == Step(sick)
        done = after(sick, seen(listed("RUNNING"), server_up=False), NOW_S + 26)
        assert done.replica is not None
        assert (done.replica.phase, done.event, done.failed) == (Phase.ENDING, "failed", True)

    def test_a_replica_whose_job_stays_suspended_is_cancelled_but_has_not_failed(self) -> None:
        sick = replica(Phase.SERVING, sick_s=NOW_S + 5)
        done = after(sick, seen(listed("SUSPENDED"), server_up=False), NOW_S + 26)
        assert done.replica is not None
        assert (done.replica.phase, done.event, done.failed) == (Phase.ENDING, "died", False)

    @pytest.mark.parametrize("server_up", [True, None])
    def test_a_replica_that_is_up_or_unchecked_is_not_down(self, *, server_up: bool | None) -> None:
        sick = replica(Phase.SERVING, sick_s=NOW_S - 1000)
        assert after(sick, seen(listed("RUNNING"), server_up=server_up)) == Step(replace(sick, sick_s=None))


class TestPreemptionByCancellation:
    @pytest.mark.parametrize("phase", LIVING)
    @pytest.mark.parametrize("state", ["COMPLETING", "PREEMPTED", "FAILED"])
    def test_a_preempted_start_has_not_failed(self, phase: Phase, state: str) -> None:
        """While Slurm cleans up it shows no PREEMPTED yet, and none at all where the job ends within its GraceTime."""
        done = after(replica(phase), seen(listed(state, preempted=True)), NOW_S + 1)
        assert (done.replica, done.event, done.failed) == (None, "preempted", False)

    def test_a_preempted_job_may_finish_in_its_grace_time(self) -> None:
        one = replica(Phase.SERVING)
        assert after(one, seen(listed("RUNNING", preempted=True), server_up=True)) == Step(one)


class TestDraining:
    def test_a_draining_replica_ends_when_it_has_no_requests(self) -> None:
        one = replica(Phase.DRAINING, reason="not needed")
        idle = seen(listed("RUNNING"), in_flight=0)
        assert after(one, idle, NOW_S) == Step(one), "in the second in which it began somebody may still come"
        assert after(one, idle, NOW_S + 1) == Step(one.to(Phase.ENDING, NOW_S + 1), "drained", "not needed")
        assert phase_after(one, idle, NOW_S - 3600) is Phase.ENDING, "the clock was set back"

    def test_a_replica_without_a_server_in_haproxy_has_no_requests(self) -> None:
        assert phase_after(replica(Phase.DRAINING), seen(listed("RUNNING")), NOW_S + 1) is Phase.ENDING

    def test_without_an_answer_of_haproxy_a_replica_may_have_requests(self) -> None:
        silent = seen(listed("RUNNING"), plane_answers=False)
        assert phase_after(replica(Phase.DRAINING), silent, NOW_S + 50) is Phase.DRAINING
        assert phase_after(replica(Phase.DRAINING), silent, NOW_S + 51) is Phase.ENDING

    def test_streams_continue_until_the_deadline(self) -> None:
        one = replica(Phase.DRAINING)
        busy = seen(listed("RUNNING"), in_flight=2)
        assert after(one, busy, NOW_S + 50) == Step(one)
        why = "2 requests not finished within 50 s"
        done = after(one, busy, NOW_S + 51)
        assert (done.event, done.reason, phase_after(one, busy, NOW_S + 51)) == ("cut", why, Phase.ENDING)
