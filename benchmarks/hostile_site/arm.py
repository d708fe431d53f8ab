"""Runs one arm: the load on a fresh site for some minutes, with the daemon or without."""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.hostile_site import load
from benchmarks.hostile_site import site as sites
from benchmarks.hostile_site.chaos import Chaos, small_spool
from benchmarks.hostile_site.load import JobSpec
from benchmarks.hostile_site.site import Lie, Site, SiteUser
from explsched.errors import SlurmError
from explsched.process import ProcessId
from slurm_plugin import devcluster
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.devcluster import machine
from slurm_plugin.devcluster.cluster import DAEMON
from slurm_plugin.devcluster.machine import until

INTERVAL_S = 2.0
QUANTUM_S = 3.0
"""Shorter than the shortest training, so that most of those that consent may be preempted at some time."""

MAX_WAIT_S = 300.0
"""A job that has waited so long has the place that Slurm gives it, whatever has been lent."""

_POLL_S = 0.5
_SETTLE_PASSES = 4
_TO_EMPTY_S = 240.0
_CALCULATION_S = 70.0
"""Within this time Slurm has computed the ages of all jobs anew (PriorityCalcPeriod)."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that Slurm acknowledged. A slurmctld that was killed may give its number to another one."""

    job_id: int
    user: SiteUser
    spec: JobSpec

    @property
    def name(self) -> str:
        """Its name in Slurm."""
        return next(word for word in self.spec.options if word.startswith("--job-name=")).partition("=")[2]


@dataclass(frozen=True, slots=True)
class Arm:
    """What happened: all that the figures are made of. Times are Unix seconds. `cancelled` by their own users.

    `used_up` are the waiting jobs whose places started jobs have had, and how much of them, by the daemon's notes.
    """

    submitted: tuple[Submitted, ...]
    cancelled: frozenset[int]
    from_s: float
    to_s: float
    accounting: str
    records: str
    at_rest: tuple[SlurmJob, ...]
    used_up: Mapping[int, int]
    daemon_log: str
    chaos: tuple[str, ...] = ()


def settings(policy: str) -> Mapping[str, object]:
    """The daemon's configuration, its times as short as those of the jobs."""
    return {
        "policy": policy,
        "interval_s": INTERVAL_S,
        "slurm": {"client": "cli", "timeout_s": 5.0},
        "order": {"max_wait_s": MAX_WAIT_S},
        "utility": {"quantum_s": QUANTUM_S},
        "preemption": {"grace_s": 5.0, "max_per_hour": 100_000, "reach": "fair-share"},
        "backpressure": {"cycle_s": 10.0, "server_threads": 200},
    }


@dataclass(slots=True)
class _Load:
    """Keeps so many jobs of each user waiting."""

    site: Site
    seed: int
    submitted: list[Submitted] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    _next: dict[str, Iterator[JobSpec]] = field(default_factory=dict)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed} order")  # noqa: S311  a workload, no secret

    def top_up(self, pool: ThreadPoolExecutor) -> None:
        """One look at the queue, and what is missing in it. Without an answer of slurmctld nothing happens."""
        listed = self.site.run("squeue", "--noheader", "--states=all", "--format=%i|%u|%t|%j")
        waiting: dict[str, int] = {}
        parked: dict[str, int] = {}
        for line in listed.splitlines():
            job_id, name, state, title = line.split("|")
            if title.startswith("parked"):
                if state == "R":
                    self._cancel(int(job_id))
                parked[name] = parked.get(name, 0) + (state == "PD")
            elif state == "PD" and not job_id.endswith("+1"):
                waiting[name] = waiting.get(name, 0) + 1
        order = self._chance.sample(sites.USERS, len(sites.USERS))  # neither of a pair is first more often
        most = max((load.backlog(user) - waiting.get(user.name, 0) for user in order), default=0)
        for _round in range(most):
            missing = [user for user in order if waiting.get(user.name, 0) < load.backlog(user)]
            list(pool.map(self._submit_next, missing))
            for user in missing:
                waiting[user.name] = waiting.get(user.name, 0) + 1
        for user in order:
            if user.lie is Lie.PARKED:
                for _ in range(load.PARKED - parked.get(user.name, 0)):
                    self._submit(user, load.parked(user))

    def _submit_next(self, user: SiteUser) -> None:
        specs = self._next.setdefault(user.name, load.jobs(user, self.seed))
        spec = next(specs)
        job_id = self._submit(user, spec)
        if job_id is None:
            return
        if user.lie is Lie.SWEEPS and spec.consents:
            self.site.run_as(
                user, ["scontrol", "update", f"JobId={job_id}", f"Comment={load.sweep_of_its_own(job_id)}"]
            )

    def _submit(self, user: SiteUser, spec: JobSpec) -> int | None:
        script = Path(__file__).with_name("job.sh")
        work_us = str(round(1e6 * spec.work_s))
        common = ("sbatch", "--parsable", "--output=/dev/null", "--chdir=/tmp")
        done = self.site.run_as(user, [*common, *spec.options, str(script), spec.reports, work_us, str(self.site.jobs)])
        if done.returncode:
            return None
        job_id = int(done.stdout.split(";")[0])
        self.submitted.append(Submitted(job_id, user, spec))
        return job_id

    def _cancel(self, job_id: int) -> None:
        self.cancelled.add(job_id)
        self.site.run("scancel", str(job_id))


def run(
    directory: Path, policy: str | None, minutes: float, seed: int, chaos_seed: int | None, tell: Callable[[str], None]
) -> Arm:
    """Load a fresh site for some minutes and see what becomes of it; `policy` None is Slurm alone."""
    site = sites.start(directory, settings(policy or "fifo"))
    with ExitStack() as at_end:
        at_end.callback(devcluster.down, directory / "c")
        if chaos_seed is not None:
            at_end.enter_context(small_spool(site.product.spool))
        chaos = Chaos(site, chaos_seed, _daemon(site) if policy else None)
        if policy:
            at_end.callback(chaos.end_daemon)
        return _run(site, minutes, seed, chaos, tell)


def _daemon(site: Site) -> ProcessId:
    environment = {**site.environment, machine.MARKER: str(site.cluster.layout.root)}
    run_in = site.cluster.layout.root / "run"
    daemon = machine.start(DAEMON, site.product.daemon_argv(), site.product.log, run_in, environment)
    until(site.product.daemon_works, "the daemon works")
    return daemon


def _run(
    site: Site,
    minutes: float,
    seed: int,
    chaos: Chaos,
    tell: Callable[[str], None],
) -> Arm:
    users = _Load(site, seed)
    began_s = time.time()
    sites.reserve(site, 60.0 * minutes * 0.4, max(1, round(0.2 * minutes)))
    with ThreadPoolExecutor(3) as pool:
        users.top_up(pool)
        from_s = time.time()
        while time.time() < began_s + 60 * minutes:
            chaos.step()
            try:
                users.top_up(pool)
            except subprocess.CalledProcessError as error:
                if not chaos.events:
                    raise
                tell(f"no answer: {error.cmd[0]}")
            tell(f"{len(users.submitted)} jobs")
            time.sleep(_POLL_S)
    to_s = time.time()
    chaos.mend()
    at_rest = _at_rest(site, chaos, tell)
    return Arm(
        tuple(users.submitted),
        frozenset(users.cancelled),
        from_s,
        to_s,
        _accounting(site),
        site.run("scontrol", "show", "job", "--oneliner"),
        at_rest,
        used_up(site.product.directory / "lent_places.json", at_rest, time.time()),
        site.product.log.read_text() if site.product.log.exists() else "",
        chaos.events,
    )


def _at_rest(site: Site, chaos: Chaos, tell: Callable[[str], None]) -> tuple[SlurmJob, ...]:
    """The queue while one job holds all nodes, so that nothing starts and each pass has settled the order.

    The daemon is started anew before: it must know from its notes whose places have been used up.
    """
    tell("waiting for a queue at rest")
    for name in CliClient(environment=site.environment).reservations():
        site.run("scontrol", "delete", f"ReservationName={name.name}")
    blocker = ("--nodes=4", "--exclusive", "--gpus-per-node=8", "--nice=-2000000", "--time=30")
    done = site.run("sbatch", "--parsable", "--output=/dev/null", *blocker, "--wrap=sleep 1000")
    number = done.strip()
    client = CliClient(environment=site.environment)

    def holds_all() -> bool:
        chaos.resume_nodes()
        try:
            return any(job.state == "RUNNING" and str(job.job_id) == number for job in client.jobs())
        except SlurmError:
            return False

    try:
        until(holds_all, "one job holds all nodes", _TO_EMPTY_S)
    except devcluster.DevClusterError as error:
        nodes = site.ask("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T %E")
        jobs = site.ask("squeue", "--noheader", "--states=R,CG,CF", "--format=%i %T %N %M %r")
        raise devcluster.DevClusterError(f"{error}\n{nodes}{jobs}{'; '.join(chaos.events)}") from error
    if site.product.log.exists():
        chaos.restart_daemon()
        time.sleep(_CALCULATION_S)  # until then a job that was written is ahead of the others by its fresh age
        passes = _passes(site)
        until(lambda: _passes(site) >= passes + _SETTLE_PASSES, "the daemon makes some passes", 120.0)
    return tuple(client.jobs())


def used_up(notes: Path, at_rest: Iterable[SlurmJob], now_s: float) -> dict[int, int]:
    """What is missing of places, by job; none without a daemon, and none of jobs that have waited too long."""
    if not notes.exists():
        return {}
    overdue = {job.job_id for job in at_rest if now_s - max(job.submit_s, job.eligible_s or 0.0) > MAX_WAIT_S}
    noted = json.loads(notes.read_text())["used"].items()
    return {int(job_id): points for job_id, points in noted if int(job_id) not in overdue}


def _passes(site: Site) -> int:
    return len(re.findall(" pass jobs=", site.product.log.read_text()))


def _accounting(site: Site) -> str:
    """All runs of all jobs, once slurmdbd has heard of them."""
    until(lambda: "DBD Agent queue size: 0" in site.run("sdiag"), "slurmdbd has taken all records", 120.0)
    fields = "JobIDRaw,JobID,User,Account,State,Start,End,AllocTRES,Submit"
    return site.run("sacct", "-a", "-X", "-D", "-n", "-P", "-S", "now-1days", "-o", fields)
