"""What the users submit: for each pair the same jobs in the same order, without end. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from benchmarks.hostile_site.site import Lie, SiteUser

BACKLOG = 5
"""Jobs that each user keeps waiting."""

PARKED = 2
"""Jobs that a user of `Lie.PARKED` keeps in the queue besides."""

_SECONDS = (5.0, 8.0, 11.0, 14.0)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job: what to give sbatch, what it reports, how long it works, and whether it may be requeued or stopped."""

    options: tuple[str, ...]
    reports: str
    work_s: float
    consents: bool = False
    components: int = 1
    parked: bool = False


def jobs(user: SiteUser, seed: int) -> Iterator[JobSpec]:
    """A user's jobs: the two of a pair differ in what they tell, and in nothing that Slurm runs."""
    chance = random.Random(f"{seed} {user.pair}")  # noqa: S311  a workload, no secret
    for number in count():
        work_s = chance.choice(_SECONDS)
        kind = chance.random()
        consents = chance.random() < 0.5
        extras = chance.random()
        base = [f"--time={1 + round(work_s / 10)}", f"--job-name=u{user.pair}-{number}"]
        if extras < 0.1:
            base.append("--nice=500")
        elif extras < 0.2:
            base.append("--qos=high")
        elif extras < 0.3:
            base.append("--partition=long")
        elif extras < 0.34:
            base.append("--partition=urgent")
        if kind < 0.07:
            yield JobSpec((*base, "--cpus-per-task=2"), "none", work_s)
        elif kind < 0.12:
            # Without QOS and partition: components of other partitions never start together here.
            yield JobSpec((*base[:2], "--gres=gpu:1", ":", "--gres=gpu:1"), "none", work_s, components=2)
        else:
            size = "--gres=gpu:1" if kind < 0.75 else "--gres=gpu:2" if kind < 0.92 else "--gres=gpu:4"
            comment = _comment(user, number, consents=consents)
            yield JobSpec((*base, size, "--requeue", *comment), _reports(user), work_s, consents)


def backlog(user: SiteUser) -> int:
    """Jobs that a user keeps waiting, parked ones apart: who has more in the queue gets more, with Slurm alone as well.

    So the honest one of the pair with `Lie.PARKED` has as many in it, all meant to run: what is compared is the lie.
    """
    is_twin = user.lie is None and user.lie_of_pair is Lie.PARKED
    return BACKLOG + PARKED if is_twin else BACKLOG


def parked(user: SiteUser) -> JobSpec:
    """A job that is not meant to run: long, so that shorter ones of its owner are put before it."""
    return JobSpec(("--time=5-0", "--gres=gpu:1", f"--job-name=parked{user.pair}"), "none", 3600.0, parked=True)


def _reports(user: SiteUser) -> str:
    if user.lie in (Lie.FAKED, Lie.CONSTANT, Lie.PERFECT):
        return str(user.lie)
    return "none" if user.lie in (Lie.MISSING, Lie.SWEEPS) else "honest"


def sweep_of_its_own(job_id: int) -> str:
    """The comment that `Lie.SWEEPS` gives a waiting job that consents, which it goes on to do."""
    return f"explsched:sweep=x{job_id}&checkpoint=USR1"


def _comment(user: SiteUser, number: int, *, consents: bool) -> tuple[str, ...]:
    """Half of the jobs may be preempted, those of liars as well: what is compared is the lie alone."""
    sweep = f"one{number}" if user.lie is Lie.SWEEPS else f"s{number // 6}"
    words = [f"sweep={sweep}"]
    if consents:
        words.append("checkpoint=USR1")
    return (f"--comment=explsched:{'&'.join(words)}",)
