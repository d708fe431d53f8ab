"""The hostile site in virtual time: its Slurm orders, ages and requeues as the real one, and its figures are fair."""

from benchmarks.hostile_site import virtual
from benchmarks.hostile_site.site import SHARES, USERS, Lie, all_telling
from benchmarks.hostile_site.virtual_slurm import REQUEUE_DELAY_S, Times, VirtualJob, VirtualSlurm
from slurm_plugin.client.changes import DelayStart, RequeueJob, SetSiteFactor, SignalJob


def a_slurm(nodes: int = 1) -> VirtualSlurm:
    return VirtualSlurm({f"n{n}": frozenset({"main"}) for n in range(nodes)}, 4, SHARES, Times())


def a_job(name: str = "j", account: str = "vision", gpus: int = 4, work_s: float = 1000.0) -> VirtualJob:
    return VirtualJob(
        0,
        name,
        "ada",
        account,
        "main",
        "normal",
        0,
        gpus,
        3600.0,
        work_s,
        "",
        requeues=True,
        reports="none",
        submit_s=0.0,
        eligible_s=0.0,
    )


def wait(slurm: VirtualSlurm, seconds: float) -> None:
    until_s = slurm.now_s + seconds
    while slurm.now_s < until_s:
        slurm.advance(slurm.now_s + 15.0)


def test_a_written_job_is_ahead_by_its_age_until_all_are_computed() -> None:
    slurm = a_slurm()
    slurm.add(a_job())
    wait(slurm, 60.0)
    written, other = slurm.add(a_job()), slurm.add(a_job())
    wait(slurm, 120.0)
    assert slurm.apply([SetSiteFactor(written, 0)]) == ()
    jobs = {job.job_id: job for job in slurm.jobs()}
    assert jobs[written].priority > jobs[other].priority
    assert jobs[written].native_priority == jobs[other].native_priority  # by one clock
    wait(slurm, 180.0)
    jobs = {job.job_id: job for job in slurm.jobs()}
    assert jobs[written].priority == jobs[other].priority


def test_the_account_that_is_owed_most_comes_first() -> None:
    slurm = a_slurm()
    slurm.add(a_job(account="speech"))
    wait(slurm, 330.0)
    served, owed = slurm.add(a_job(account="speech")), slurm.add(a_job(account="bio"))
    jobs = {job.job_id: job for job in slurm.jobs()}
    assert jobs[owed].priority > jobs[served].priority


def test_a_requeued_job_goes_on_from_where_it_saved_after_slurms_delay() -> None:
    slurm = a_slurm()
    job = slurm.add(a_job())
    wait(slurm, 120.0)
    slurm.apply([SignalJob(job, "USR1")])
    saved_s = slurm.known[job].done_s
    wait(slurm, 60.0)
    slurm.apply([RequeueJob(job)])
    assert slurm.known[job].done_s == saved_s > 0
    wait(slurm, REQUEUE_DELAY_S - 20.0)
    assert slurm.known[job].state == "PENDING"
    wait(slurm, 60.0)
    assert slurm.known[job].state == "RUNNING"


def test_shares_and_lies() -> None:
    used_s = {user.name: 3.0 if user.lie else 2.0 for user in USERS}
    assert virtual.lying(used_s, USERS)["all"] == [1.5]
    assert virtual.lying(used_s, all_telling(Lie.PERFECT)) == {"all": [1.5], "perfect": [1.5] * 6}
    assert sum(virtual.shares(used_s).values()) == 100.0
    found = {(arm, seed): virtual.Outcome(used_s, 3, 1) for arm in (virtual.ALONE, "srsf") for seed in (1, 2)}
    ours = virtual.figures(found, ["srsf"], USERS)["srsf"]
    assert isinstance(ours, dict)
    assert (ours["points_from_slurm_alone"], ours["met"]) == (0.0, False)
    assert (ours["evictions"], ours["evictions_in_vain"]) == (6, 2)


def test_a_delayed_job_starts_by_itself_once_nobody_delays_it_any_more() -> None:
    slurm = a_slurm()
    job = slurm.add(a_job())
    assert slurm.apply([DelayStart(job, int(slurm.now_s) + 300)]) == ()
    wait(slurm, 240.0)
    assert slurm.known[job].state == "PENDING"
    wait(slurm, 180.0)
    assert slurm.known[job].state == "RUNNING"
