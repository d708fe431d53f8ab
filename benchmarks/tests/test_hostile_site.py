"""The hostile site: what counts as an eviction in vain, as lost, as out of order; and that twins are twins."""

import json
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.hostile_site import figures, load
from benchmarks.hostile_site.arm import MAX_WAIT_S, Arm, Submitted, used_up
from benchmarks.hostile_site.chaos import drained_for_numbers
from benchmarks.hostile_site.load import JobSpec
from benchmarks.hostile_site.site import CYCLE_S, USERS, Lie
from explsched.preemption_record import Interruption, PreemptionRecord
from slurm_plugin import job_options
from slurm_plugin.client.records import SlurmJob

HONEST, LIAR = USERS[0], USERS[1]
SPEC = JobSpec(("--gres=gpu:1", "--job-name=mine"), "none", 10.0)


def row(job_id: int, user: str, start: object, end: object, gpus: int = 1, state: str = "COMPLETED") -> str:
    account = next(one.account for one in USERS if one.name == user)
    return f"{job_id}|{job_id}|{user}|{account}|{state}|{start}|{end}|billing=1,cpu=1,gres/gpu={gpus},node=1|90"


def an_arm(accounting: list[str], records: str = "", submitted: tuple[Submitted, ...] = (), log: str = "") -> Arm:
    return Arm(submitted, frozenset({9}), 100.0, 200.0, "\n".join(accounting), records, (), {}, log)


def test_the_two_of_a_pair_ask_for_the_same() -> None:
    for honest, liar in zip(USERS[::2], USERS[1::2], strict=True):
        assert (honest.pair, honest.account, honest.lie) == (liar.pair, liar.account, None)
        ours, theirs = (list(islice(load.jobs(user, 1), 200)) for user in (honest, liar))
        for one, other in zip(ours, theirs, strict=True):
            asked = [[word for word in job.options if not word.startswith("--comment")] for job in (one, other)]
            assert asked[0] == asked[1]
            assert (one.work_s, one.consents) == (other.work_s, other.consents)
    assert {user.lie for user in USERS} == {None, *Lie}


def test_who_changes_a_jobs_sweep_goes_on_to_consent_as_the_honest_one_does() -> None:
    options = job_options.parse(load.sweep_of_its_own(7))
    told = options.exploration if options else None
    assert told is not None
    assert (told.sweep, told.checkpoint_signal) == ("x7", "USR1")


def test_the_two_of_a_pair_have_as_many_jobs_in_the_queue() -> None:
    for honest, liar in zip(USERS[::2], USERS[1::2], strict=True):
        assert load.backlog(honest) == load.backlog(liar) + load.PARKED * (liar.lie is Lie.PARKED)


def test_gpu_time_counts_within_the_load_alone() -> None:
    arm = an_arm([row(1, HONEST.name, 50, 110, 2), row(2, LIAR.name, 190, "Unknown"), row(3, LIAR.name, "Unknown", 5)])
    used_s = figures.gpu_s_of_users(arm)
    assert (used_s[HONEST.name], used_s[LIAR.name]) == (20.0, 10.0)
    assert figures.lying(arm)[str(LIAR.lie)] == 0.5


def evicted(for_job: int, at_s: float) -> str:
    record = PreemptionRecord(90.0).plus(Interruption(0, at_s, 1, 5.0, "why", for_job))
    return f"JobId=1 Restarts=1 JobState=RUNNING AdminComment={record.text()}"


@pytest.mark.parametrize(
    ("start_s", "in_vain"),
    [(141, False), (140 + 2 * CYCLE_S, False), (150 + 2 * CYCLE_S, True), ("Unknown", True), (120, True)],
)
def test_a_beneficiary_must_start_within_two_cycles(start_s: object, *, in_vain: bool) -> None:
    victim = row(1, HONEST.name, 110, 140, state="REQUEUED")
    arm = an_arm([victim, row(2, HONEST.name, start_s, "Unknown")], evicted(2, 138))
    found = figures.evictions(arm)
    assert (found.all, bool(found.in_vain)) == (1, in_vain)


@pytest.mark.parametrize(
    ("job_id", "record", "is_lost"),
    [
        (1, "JobId=1 JobState=COMPLETED Priority=1", False),
        (1, "JobId=1 JobState=FAILED Priority=1", True),
        (1, "JobId=1 JobState=CANCELLED Priority=1", True),
        (9, "JobId=9 JobState=CANCELLED Priority=1", False),
        (1, "", True),
    ],
)
def test_an_acknowledged_job_that_neither_ends_well_nor_waits_is_lost(
    job_id: int, record: str, *, is_lost: bool
) -> None:
    jobs = (Submitted(job_id, HONEST, SPEC),)
    found = figures.harmed(an_arm([], record, jobs))
    assert (bool(found.lost_by_slurm), found.lost) == (is_lost, ())
    found = figures.harmed(an_arm([], record, jobs, f'INFO SignalJob job={job_id} why="worth less"\n'))
    assert (found.lost_by_slurm, bool(found.lost)) == ((), is_lost)


def test_a_number_that_slurmctld_gave_twice_is_one_jobs_only() -> None:
    jobs = (Submitted(1, HONEST, SPEC), Submitted(1, LIAR, replace(SPEC, options=("--job-name=other",), consents=True)))
    found = figures.harmed(an_arm([], "JobId=1 JobName=other JobState=COMPLETED", jobs, "RequeueJob job=1 why=x"))
    assert (len(found.lost_by_slurm), found.lost, found.requeued) == (1, (), ())


def test_jobs_that_are_held_or_requeued_without_consent_are_found() -> None:
    records = "JobId=1 JobState=PENDING Priority=0 Reason=JobHeldAdmin\nJobId=2 JobState=RUNNING Priority=1"
    jobs = tuple(Submitted(job_id, HONEST, SPEC) for job_id in (1, 2))
    found = figures.harmed(an_arm([], records, jobs, 'INFO RequeueJob job=2 why="saved"\n'))
    assert (len(found.held), len(found.requeued), found.lost) == (1, 1, ())


@pytest.mark.parametrize(("log", "held"), [("", 0), ("INFO SignalJob job=1", 1)])
def test_a_job_that_slurm_holds_because_its_launch_failed_is_ours_only_if_we_touched_it(log: str, held: int) -> None:
    records = "JobId=1 JobState=PENDING Priority=0 Reason=launch_failed_requeued_held"
    found = figures.harmed(an_arm([], records, (Submitted(1, HONEST, SPEC),), log))
    assert (len(found.held), len(found.lost_by_slurm)) == (held, 1 - held)


def test_only_places_that_belong_to_others_are_out_of_order() -> None:
    def job(job_id: int, user: str, priority: int, native: int) -> SlurmJob:
        return SlurmJob(
            job_id, "j", user, 1, "a", "main", "q", "PENDING", "Priority", priority, priority - native, 0.0, 0.0, None,
            60.0, 1, 1, 1, (), "", "", 0, natives=(native,),
        )  # fmt: skip

    own = (job(1, "ada", 10, 30), job(2, "ada", 30, 10), job(3, "bob", 20, 20))
    assert figures.out_of_order(Arm((), frozenset(), 0.0, 1.0, "", "", own, {}, "")) == ()
    others = (job(1, "ada", 10, 30), job(3, "bob", 20, 20))
    assert len(figures.out_of_order(Arm((), frozenset(), 0.0, 1.0, "", "", others, {}, ""))) == 2
    assert figures.out_of_order(Arm((), frozenset(), 0.0, 1.0, "", "", others, {1: -20}, "")) == ()  # 20 were lent


def test_what_was_lent_of_a_place_counts_until_its_job_has_waited_too_long(tmp_path: Path) -> None:
    notes = tmp_path / "lent_places.json"
    assert used_up(notes, (), 0.0) == {}
    notes.write_text('{"used": {"1": -20, "2": -30}}')

    def waiting(job_id: int, submit_s: float) -> SlurmJob:
        return SlurmJob(
            job_id, "j", "ada", 1, "a", "main", "q", "PENDING", "Priority", 10, 0, submit_s, submit_s, None,
            60.0, 1, 1, 1, (), "", "", 0,
        )  # fmt: skip

    jobs = (waiting(1, 100.0), waiting(2, 200.0))
    assert used_up(notes, jobs, 150.0 + MAX_WAIT_S) == {2: -30}


def test_nodes_that_were_drained_for_a_number_given_twice_are_found() -> None:
    """After a SIGKILL of slurmctld; with all nodes drained nothing ever started again."""
    listing = "n1|drain|Duplicate jobid\nn2|drng|Duplicate jobid\nn3|drain|broken fan\nn4|mix|none\n"
    assert drained_for_numbers(listing) == ("n1", "n2")


def test_all_figures_can_be_written_down() -> None:
    arm = an_arm([row(1, HONEST.name, 110, 140)])
    ours = figures.of(arm)
    assert json.loads(json.dumps([asdict(ours), asdict(figures.bars(ours))]))[0]["runs"] == {"COMPLETED": 1}
