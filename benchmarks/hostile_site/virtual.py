"""`python -m benchmarks.hostile_site.virtual`: the hostile site in virtual time, many hours and many seeds.

The real site decides whether it works; but a few minutes of it on a busy machine do not tell 2 % from chance. Here the
same users with the same lies load a Slurm in virtual time (`virtual_slurm`), and the daemon is the product's own
controller; a second of the real site is a minute here. Jobs without GPUs and heterogeneous ones are left out.

Figures are over all seeds together, with the standard error between seeds, of lies between pairs of users. Slurm alone
is run a second time with the same jobs submitted in another order: what differs there is chance. With `--lie` all pairs
tell the same one.
"""

from __future__ import annotations

import json
import logging
import math
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.hostile_site import load
from benchmarks.hostile_site.load import JobSpec
from benchmarks.hostile_site.site import GPUS_PER_NODE, NODES, SHARES, USERS, Lie, SiteUser, all_telling
from benchmarks.hostile_site.virtual_slurm import Times, VirtualJob, VirtualSlurm
from explsched import preemption_record
from slurm_plugin import config
from slurm_plugin.steering.controller import Controller

SCALE = 60.0
"""Seconds here for one of the real site."""

TICK_S = 15.0
REPORT_S = 30.0
WARM_UP_S = 7200.0
CYCLES = 2
"""Within so many cycles a job starts for which others made room."""

MOST_LYING = 1.02
"""GPU-time that liars may get over that of the honest."""

MOST_POINTS = 2.0
"""Points by which an account's share may differ from what it is with Slurm alone."""

ALONE = "Slurm alone"
AGAIN = "Slurm alone, another order of submission"


@dataclass(frozen=True, slots=True)
class Run:
    """One arm with one seed; `policy` may be `ALONE` or `AGAIN`. `lie` is what all pairs tell, None for one each."""

    policy: str
    seed: int
    hours: float
    calc_s: float
    pass_s: float = 30.0
    lie: Lie | None = None

    @property
    def users(self) -> tuple[SiteUser, ...]:
        """Who is on the site: each pair with a lie of its own, or all with the same."""
        return all_telling(self.lie) if self.lie else USERS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What each user got of the GPUs, in seconds, after the warm-up; preemptions for another job, and those in vain."""

    gpu_s: Mapping[str, float]
    evictions: int
    evictions_in_vain: int


def outcome(run: Run) -> Outcome:
    """Play one arm."""
    with tempfile.TemporaryDirectory(prefix="expl") as scratch:
        return _Site(run, Path(scratch)).play()


def settings(policy: str, pass_s: float, place: Path) -> config.Config:
    """The daemon's configuration: times as on the real site, a minute for a second."""
    text = {
        "policy": policy,
        "interval_s": pass_s,
        "order": {"max_wait_s": 300.0 * SCALE, "site_factor_file": str(place / "site_factors.json")},
        "utility": {"quantum_s": 8.0 * SCALE},
        "preemption": {"grace_s": 60.0, "max_per_hour": 100_000},
        "progress": {"spool": str(place / "spool")},
        "audit": {"file": str(place / "audit.jsonl")},
        "state": {"directory": str(place / "state")},
    }
    return config.parse(json.dumps(text), place / "explsched.yaml")


class _Site:
    def __init__(self, run: Run, place: Path) -> None:
        names = [f"n{number}" for number in range(1, NODES + 1)]
        partitions = {"main": names, "long": names[2:], "urgent": names[3:]}
        nodes = {name: frozenset(p for p, members in partitions.items() if name in members) for name in names}
        self._slurm = VirtualSlurm(nodes, GPUS_PER_NODE, SHARES, Times(calc_s=run.calc_s))
        self._run = run
        self._spool = place / "spool"
        self._spool.mkdir()
        self._specs = {user.name: _with_gpus(load.jobs(user, run.seed)) for user in run.users}
        self._controller = None
        if run.policy not in (ALONE, AGAIN):
            self._controller = Controller(self._slurm, settings(run.policy, run.pass_s, place))
        self._reported: dict[int, int] = {}
        self._chance = random.Random(f"{run.seed} {run.policy == AGAIN}")  # noqa: S311  a workload, no secret

    def play(self) -> Outcome:
        """The whole time."""
        slurm = self._slurm
        began_s, gained_s = slurm.now_s, defaultdict[str, float](float)
        turn = 0
        while slurm.now_s < began_s + 3600.0 * self._run.hours:
            self._top_up()
            turn += 1
            if self._controller is not None and turn % round(self._run.pass_s / TICK_S) == 0:
                self._report()
                self._controller.reconcile(slurm.now_s)
                self._save()
            for job, gpu_s in slurm.advance(slurm.now_s + TICK_S):
                if slurm.now_s > began_s + WARM_UP_S:
                    gained_s[job.user] += gpu_s
        return Outcome({user.name: gained_s[user.name] for user in self._run.users}, *self._evictions())

    def _evictions(self) -> tuple[int, int]:
        """Requeues for a beneficiary that is named in the AdminComment, and those it did not start after in time."""
        slurm = self._slurm
        count = in_vain = 0
        for job, time_s in slurm.requeued:
            record = preemption_record.read(job.admin_comment, 0.0, job.restarts)
            one = next((one for one in record.latest if abs(one.time_s - time_s) < self._run.pass_s), None)
            until_s = time_s + CYCLES * slurm.times.schedule_s
            if one is not None and one.beneficiary is not None and until_s <= slurm.now_s:
                count += 1
                in_vain += not any(time_s <= start_s <= until_s for start_s in slurm.started_s[one.beneficiary])
        return count, in_vain

    def _top_up(self) -> None:
        """So many jobs of each user wait; parked ones never run. Who submits first is chance."""
        jobs = self._slurm.jobs_of(user.name for user in self._run.users)
        for user in self._chance.sample(self._run.users, len(self._run.users)):
            parked = [job for job in jobs[user.name] if job.name.startswith("parked")]
            waiting = sum(job.state == "PENDING" for job in jobs[user.name] if job not in parked)
            for _ in range(load.backlog(user) - waiting):
                self._submit(user, next(self._specs[user.name]))
            for job in parked:
                if job.state == "RUNNING":
                    self._slurm.end(job.job_id)
            if user.lie is Lie.PARKED:
                for _ in range(load.PARKED - sum(job.state == "PENDING" for job in parked)):
                    self._submit(user, load.parked(user))

    def _submit(self, user: SiteUser, spec: JobSpec) -> None:
        told = dict(option.removeprefix("--").partition("=")[::2] for option in spec.options)
        days, _, hours = told["time"].rpartition("-")
        limit_s = 60.0 * SCALE * int(hours) if not days else 86400.0 * SCALE * int(days)
        job = VirtualJob(
            job_id=0,
            name=told["job-name"],
            user=user.name,
            account=user.account,
            partition=told.get("partition", "main"),
            qos=told.get("qos", "normal"),
            nice=int(told.get("nice", 0)),
            gpus=int(told["gres"].removeprefix("gpu:")),
            limit_s=limit_s,
            work_s=SCALE * spec.work_s,
            comment=told.get("comment", ""),
            requeues="requeue" in told,
            reports=spec.reports,
            submit_s=0.0,
            eligible_s=0.0,
        )
        self._slurm.add(job)
        if user.lie is Lie.SWEEPS and spec.consents:
            job.comment = load.sweep_of_its_own(job.job_id)

    def _report(self) -> None:
        """What running jobs have to say since the last pass."""
        for job in self._slurm.known.values():
            step = int(job.done_s / REPORT_S) + 1
            if job.state != "RUNNING" or job.reports == "none" or self._reported.get(job.job_id) == step:
                continue
            self._reported[job.job_id] = step
            told, value = step, {"honest": 10 / (step + 9), "faked": 1e6 / step**2, "constant": 1.0}.get(job.reports)
            if value is None:
                told, value = 1000, 0.0
            self._say(job, step=told, metric="loss", value=value, total_steps=1000)

    def _save(self) -> None:
        """Jobs that were asked to save their state have done so."""
        for job_id in self._slurm.signalled:
            if job_id in self._slurm.known:
                self._say(self._slurm.known[job_id], event="checkpoint")
        self._slurm.signalled.clear()

    def _say(self, job: VirtualJob, **words: object) -> None:
        line = {"time_s": self._slurm.now_s, "restart": job.restarts, **words}
        with (self._spool / f"{job.job_id}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def _with_gpus(specs: Iterator[JobSpec]) -> Iterator[JobSpec]:
    return (spec for spec in specs if spec.components == 1 and any("--gres=gpu:" in word for word in spec.options))


def shares(used_s: Mapping[str, float]) -> dict[str, float]:
    """Percent of the GPU-time of all accounts."""
    total_s = sum(used_s.values())
    return {name: 100 * sum(used_s[u.name] for u in USERS if u.account == name) / total_s for name in SHARES}


def lying(used_s: Mapping[str, float], users: Sequence[SiteUser]) -> dict[str, list[float]]:
    """GPU-time of the lying user over that of the honest one, of all together and of the pairs that tell each lie."""
    honest = {user.pair: used_s[user.name] for user in users if not user.lie}
    liars = {user.pair: used_s[user.name] for user in users if user.lie}
    of_pairs: defaultdict[str, list[float]] = defaultdict(list)
    for user in users:
        if user.lie:
            of_pairs[user.lie].append(liars[user.pair] / max(1.0, honest[user.pair]))
    return {"all": [sum(liars.values()) / sum(honest.values())], **of_pairs}


def _mean(values: Sequence[float]) -> dict[str, float]:
    """With its standard error."""
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"mean": round(statistics.mean(values), 3), "standard_error": round(spread, 3)}


def figures(
    played: Mapping[tuple[str, int], Outcome], policies: Sequence[str], users: Sequence[SiteUser]
) -> dict[str, object]:
    """By arm: shares, how far they are from Slurm's alone, what lying brings, and preemptions (all seeds together)."""
    found = {key: one.gpu_s for key, one in played.items()}
    seeds = sorted({seed for _, seed in found})
    alone = {name: _mean([shares(found[ALONE, seed])[name] for seed in seeds]) for name in SHARES}
    result: dict[str, object] = {}
    for policy in policies:
        of_accounts = {name: _mean([shares(found[policy, seed])[name] for seed in seeds]) for name in SHARES}
        points = [abs(of_accounts[name]["mean"] - alone[name]["mean"]) for name in SHARES]
        of_seeds = [lying(found[policy, seed], users) for seed in seeds]
        lies = {name: _mean([ratio for one in of_seeds for ratio in one[name]]) for name in of_seeds[0]}
        result[policy] = {
            "shares_percent": of_accounts,
            "points_from_slurm_alone": round(max(points), 2),
            "lying_over_honest": lies,
            "met": max(points) <= MOST_POINTS and lies["all"]["mean"] <= MOST_LYING,
            "evictions": sum(played[policy, seed].evictions for seed in seeds),
            "evictions_in_vain": sum(played[policy, seed].evictions_in_vain for seed in seeds),
            "gpu_hours": round(sum(sum(found[policy, seed].values()) for seed in seeds) / 3600 / len(seeds)),
        }
    return result


@click.command()
@click.option("--hours", default=12.0, show_default=True, help="Of virtual time for each seed, two of them warm-up.")
@click.option("--seeds", default=4, show_default=True, help="Loads.")
@click.option("--first-seed", default=1, show_default=True, help="Of the first of them.")
@click.option("--policy", "policies", multiple=True, default=("srsf", "explsched"), show_default=True)
@click.option("--lie", type=click.Choice([str(lie) for lie in Lie]), help="All pairs tell this one. Default: one each.")
@click.option("--pass-s", default=30.0, show_default=True, help="Between two passes of the daemon.")
@click.option("--calc-s", default=300.0, show_default=True, help="Slurm's PriorityCalcPeriod; a job ages in 36,000 s.")
@click.option("--workers", default=2, show_default=True, help="Processes.")
@click.option("--json", "as_json", is_flag=True, help="Print one line.")
def main(
    hours: float,
    seeds: int,
    first_seed: int,
    policies: tuple[str, ...],
    lie: str | None,
    pass_s: float,
    calc_s: float,
    workers: int,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Shares of accounts and what lying brings, under each policy and with Slurm alone."""
    logging.disable(logging.INFO)
    arms, told = (ALONE, AGAIN, *policies), Lie(lie) if lie else None
    loads = range(first_seed, first_seed + seeds)
    runs = [Run(policy, seed, hours, calc_s, pass_s, told) for seed in loads for policy in arms]
    with ProcessPoolExecutor(workers, initializer=logging.disable, initargs=(logging.WARNING,)) as pool:
        gained = list(pool.map(outcome, runs))
    found = {(run.policy, run.seed): one for run, one in zip(runs, gained, strict=True)}
    setting = {"hours": hours, "seeds": list(loads), "pass_s": pass_s, "calc_s": calc_s, "lie": lie}
    of_arms = figures(found, arms, runs[0].users)
    click.echo(json.dumps({"setting": setting, "arms": of_arms}, indent=None if as_json else 1))


if __name__ == "__main__":
    main()
