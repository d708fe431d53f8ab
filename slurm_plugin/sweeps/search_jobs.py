"""What a search gives to Slurm: a job for each trial, and the small jobs of which each makes a pass.

A job is found by its comment, which names the search and the trial. What follows a pass that cannot come to its end:
the pass that waits for the end of a trial; else the one that each pass of Slurm's submits first, for `_AGAIN_S` later;
else that pass itself, which its script has Slurm requeue, as that takes no further job of its user.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

from explsched import interpreter, preemption_record
from explsched.atomic_file import replace_file_durably
from explsched.errors import SlurmError
from explsched.job_options.table import SCHEDULED
from explsched.job_options.values import PAIRS_BYTES
from explsched.parameters import listed, of_value, shown
from slurm_plugin.client import process
from slurm_plugin.client.changes import CancelJob
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.client.squeue import with_whole_nodes
from slurm_plugin.config import Config
from slurm_plugin.observation.requirements import gpus_had, most_shards_per_gpu
from slurm_plugin.sweeps.search_directory import Identity
from slurm_plugin.sweeps.search_file import TRIAL, SearchError, SearchFile, Value, argument
from wrappers import sxbatch

_OURS = "explsched"
"""What our words in the comments of jobs begin with."""

_FROM_THE_FILE = frozenset({"SBATCH_EXPORT", *(option.variable for option in SCHEDULED)})
"""What sxbatch, and sbatch with our plugin, take job options from, and what sbatch keeps from a job.

A search is begun in another environment than that of its passes, and trials should start alike."""

_TRIAL = "explsched-trial:"
_NEXT = "explsched-next:"
_UNDER_WAY = frozenset({
    *("PENDING", "REQUEUED", "REQUEUE_FED", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"),
    *("STAGE_OUT", "COMPLETING"),
})  # fmt: skip
_MOST_WATCHED = 100
"""Trials of which the next pass is a dependent: each lengthens a line that slurmctld reads again and again."""
_LOOK_S = 120
"""Until a look at what Slurm starts no pass for: the end of a trial that is not watched, and that one is paused."""
_TIME = ("--time=10", "--time-min=2")
"""Of a pass, which takes seconds: backfill may shorten it, so that it need not wait behind the queue for GPUs."""
_AGAIN_S = 600
"""Until a pass of Slurm's that did not come to its end is made again."""
_MOST_REPEATS = 5_000
"""So often a pass is requeued: for a week."""
_PATIENCE_S = 10
"""Between two tries of a pass to be requeued, while slurmctld does not answer."""
_REQUEUE = ("scontrol", "requeue", "Incomplete")
"""Does nothing for a job that Slurm has ended or requeued meanwhile, as of an order that it answered too late."""


class SearchJobs:
    """The jobs of one search, as a pass finds and leaves them.

    Attributes:
        under_way: trials' jobs that wait or run, as far as the pass has come.
        waiting: jobs that wait to make a pass.

    """

    def __init__(self, path: Path, file: SearchFile, config: Config, config_path: Path | None) -> None:
        self._path = path
        self._file = file
        self._directory = file.directory(path)
        self._timeout_s = config.slurm.timeout_s
        self._config_path = config_path
        self._client = CliClient(config.slurm.timeout_s)
        self._found: dict[int, SlurmJob] = {}
        self.under_way: list[int] = []
        self.waiting: set[int] = set()
        self._watched: list[int] = []
        self._watching: set[int] = set()

    def look(self, identity: Identity, lock: int) -> None:
        """A pass begins: see what Slurm has of the search. sbatch inherits `lock`."""
        self._id, self._working_directory = identity
        self._lock = lock
        jobs = self._client.tagged_jobs(_OURS)
        self._found, self.under_way = self._of_trials(jobs), []
        passes = [job for job in jobs if job.comment == f"{_NEXT}{self._id}"]
        self.waiting = {job.job_id for job in passes if job.state == "PENDING"}
        if self.own_job is not None:
            with suppress(SlurmError):  # without it this pass is repeated itself, if need be
                self._reserve(f"--begin=now+{_AGAIN_S}")

    def of_trial(self, number: int) -> SlurmJob | None:
        """The job of the trial, None if Slurm remembers none; of several the one that claimed it, else the first."""
        return self._found.get(number)

    def claim(self, number: int) -> int | None:
        """The job that ran the trial, None if none has started."""
        try:
            return int(str((self.directory(number) / "claim").readlink()))
        except FileNotFoundError:
            return None

    def directory(self, number: int) -> Path:
        """The trial's own directory."""
        return self._directory / "trials" / str(number)

    def gpus(self, job: SlurmJob) -> float:
        """The GPUs of a job that is over, as `gpus_had`. Raises `SlurmError`."""
        nodes = self._client.nodes() if job.shards_per_node or job.exclusive else ()
        return gpus_had(with_whole_nodes(job, {node.name: node.gpus for node in nodes}), most_shards_per_gpu(nodes))

    def run_time_s(self, job_id: int) -> float:
        """How long the last run of a job took. Raises `SlurmError` for unknown jobs."""
        return self._client.run_time_s(job_id)

    @property
    def paused(self) -> int:
        """How many of the trials under way wait because explsched has preempted them."""
        return sum(map(_is_paused, self._waiting_or_running()))

    @property
    def held(self) -> tuple[int, ...]:
        """The jobs of those under way that Slurm does not start before they are released."""
        return tuple(sorted(job.job_id for job in self._waiting_or_running() if job.is_held))

    def _waiting_or_running(self) -> list[SlurmJob]:
        """Of the jobs that the pass has found those under way."""
        under_way = frozenset(self.under_way)
        return [job for job in self._found.values() if job.job_id in under_way]

    def submit(self, number: int, params: Mapping[str, Value]) -> None:
        """Submit a trial, through sxbatch's own code. The file says all about it, and the environment nothing."""
        if self.under_way:  # while there is a place: trials may take all that Slurm has for the user
            self._reserve(f"--dependency=afterany:{self.under_way[0]}")
        directory = self.directory(number)
        directory.mkdir(parents=True, exist_ok=True)
        values = {name: of_value(value) for name, value in params.items()}
        own = [word.replace(TRIAL, str(directory)) for word in (*self._file.job.sxrun, "--", *self._file.command)]
        arguments = [f"--{name}={argument(value)}" for name, value in params.items()]
        script = directory / "job.sh"
        job, told = self._file.job, listed(values)
        words = [f"--sweep={self._file.name}", f"--metric={self._file.metric}", f"--direction={self._file.direction}"]
        words += [f"--checkpoint={job.checkpoint}"] if job.checkpoint else []
        words += ["--early-stop"] if job.early_stop else []
        simple = len(told.encode()) <= PAIRS_BYTES and told.isprintable()
        simple = simple and not any("," in shown(value) for value in values.values())
        words += [f"--params={told}"] if simple else []
        words += [f"--comment={_TRIAL}{self._id}:{number}", f"--job-name={self._file.name}-{number}"]
        words += ["--nodes=1", "--ntasks=1", f"--time={job.time}", _output(directory / "output")]
        words += [f"--chdir={self._working_directory}"]
        words += [f"--gpus-per-node={job.gpus}"] if job.gpus else []
        try:
            prepared = sxbatch.prepare(*sxbatch.read([*words, *job.sbatch, str(script)], {}))
        except ValueError as error:
            raise SearchError(f"{self._path}: job: {error}") from error
        replace_file_durably(script, _script(directory / "claim", prepared.environment, [*own, *arguments]))
        try:
            self.under_way.append(self._sbatch(prepared.argv, prepared.environment))
        except SlurmError:
            if self.under_way or self.own_job is None or not self.waiting:
                raise
            self._take_back(self.waiting)  # Slurm may have one place beside ours: without a trial no pass would help
            self.under_way.append(self._sbatch(prepared.argv, prepared.environment))

    def watch(self, *, a_pause_counts: bool = False) -> None:
        """Have Slurm make the next pass when any of the trials ends, none without trials; take back those that waited.

        Another looks after `_LOOK_S`, whatever has ended, if not all trials are watched, or `a_pause_counts`. Where
        Slurm takes no more jobs of the user those that waited stay, so that the search goes on. What this process has
        submitted for the same trials serves as it is: `--wait` makes a pass every few seconds.
        """
        if self.under_way == self._watched and self._watching <= self.waiting:
            self._take_back(self.waiting - self._watching)
            return
        ends = "?".join(f"afterany:{job_id}" for job_id in self.under_way[:_MOST_WATCHED])
        try:
            watching = {self._pass_later(f"--dependency={ends}")} if ends else set()
        except SlurmError:
            if not self.waiting:
                raise
            return
        self._take_back(self.waiting - watching)
        if len(self.under_way) > _MOST_WATCHED or (ends and a_pause_counts):
            with suppress(SlurmError):  # without a place for it the search goes on when a trial ends
                watching.add(self._pass_later(f"--begin=now+{_LOOK_S}"))
        self.waiting |= watching
        self._watched, self._watching = self.under_way, watching

    @property
    def own_job(self) -> str | None:
        """The job of Slurm that makes this pass, None where a person does."""
        own = os.environ.get("SLURM_JOB_ID")
        return own if os.environ.get("SLURM_JOB_NAME") == self._name_of_passes else None

    @property
    def _name_of_passes(self) -> str:
        return f"{self._file.name}-next"

    def _of_trials(self, jobs: Sequence[SlurmJob]) -> dict[int, SlurmJob]:
        """The job of each trial; of several the one that claimed it, else the first."""
        mark, found = f"{_TRIAL}{self._id}:", dict[int, SlurmJob]()
        for job in sorted(jobs, key=lambda job: job.job_id, reverse=True):
            for word in job.comment.split():
                number = word.removeprefix(mark)
                if word.startswith(mark) and number.isdecimal():
                    known = found.get(int(number))
                    if known is None or known.job_id != self.claim(int(number)):
                        found[int(number)] = job
        return found

    def _reserve(self, when: str) -> None:
        """Submit a pass that is made if this one does not come to its end, unless one waits."""
        if not self.waiting:
            self.waiting.add(self._pass_later(when))

    def _take_back(self, passes: Set[int]) -> None:
        self._client.apply([CancelJob(job_id) for job_id in sorted(passes)])
        self.waiting = self.waiting.difference(passes)

    def _pass_later(self, when: str) -> int:
        """Submit a small job that makes a pass; returns its id."""
        options = [] if self._config_path is None else ["--config", str(self._config_path.absolute())]
        command = _ours("explsched.cli", "sweep", "run", str(self._path), "--search", self._file.name, *options)
        words = [when, f"--comment={_NEXT}{self._id}", f"--job-name={self._name_of_passes}", "--ntasks=1"]
        words += [*_TIME, "--requeue", "--open-mode=append", _output(self._directory / "passes.log")]
        words += [f"--chdir={self._working_directory}"]
        shared = ("partition", "account", "qos")
        words += [word for name, given in self._file.job.sbatch_options() if name in shared for word in given]
        return self._sbatch(["sbatch", *words], {}, _script_of_pass(command, f"{_NEXT}{self._id}"))

    def _sbatch(self, argv: Sequence[str], added: Mapping[str, str], script: str | None = None) -> int:
        ours = process.submission(process.environment({}))
        environment = {**{name: value for name, value in ours.items() if name not in _FROM_THE_FILE}, **added}
        answer = process.run([argv[0], "--parsable", *argv[1:]], self._timeout_s, environment, script, (self._lock,))
        job_id = answer.out.strip().partition(";")[0]
        if answer.returncode or not job_id.isdecimal():
            raise SlurmError(f"sbatch refused a job of {self._path}: {(answer.err or answer.out).strip()}")
        return int(job_id)


def is_under_way(job: SlurmJob) -> bool:
    """Whether the job waits or runs, as opposed to one that is over."""
    return job.state in _UNDER_WAY


def _is_paused(job: SlurmJob) -> bool:
    """Whether the job waits because explsched has preempted its last run."""
    try:
        past = preemption_record.read(job.admin_comment, job.submit_s, job.restarts)
    except preemption_record.RecordError:
        return False
    return job.state == "PENDING" and past.of_run(job.restarts - 1) is not None


def _output(path: Path) -> str:
    """The option of sbatch: of its own accord it would replace %j and the like in the names of directories."""
    return f"--output={str(path).replace('%', '%%')}"


def _ours(module: str, *words: str) -> list[str]:
    """A command of this installation, on PATH or not. Modules in the directory that trials run in are not taken."""
    return interpreter.of_module(module, *words)


def _script_of_pass(words: Sequence[str], comment: str) -> str:
    """A pass that fails in any way is made again in two minutes, by Slurm, unless another waits with this comment.

    It may be killed, find no Python on its node, or find a file or a disk in a state that will pass. While slurmctld
    does not answer it is asked until Slurm ends the job.
    """
    return f"""#!/bin/sh
{shlex.join(words)}
status=$?
if [ $status -eq 0 ] || [ "${{SLURM_RESTART_COUNT:-0}}" -ge {_MOST_REPEATS} ]; then
  exit $status
fi
waits() {{
  squeue --noheader --me --states=PENDING --name="$SLURM_JOB_NAME" --format=%k | grep -qx {shlex.quote(comment)}
}}
echo "sexplsched: this pass is repeated unless another waits" >&2
until waits || {shlex.join(_REQUEUE)} "$SLURM_JOB_ID"; do sleep {_PATIENCE_S}; done
exit $status
"""


def _script(claim: Path, environment: Mapping[str, str], words: Sequence[str]) -> str:
    """The batch script of a trial. A requeued job finds its own claim; `--export` may leave only what is set here."""
    link = shlex.quote(str(claim))
    told = [option.variable for option in SCHEDULED if option.is_read_in_job and option.variable in environment]
    exports = "".join(f"export {name}={shlex.quote(environment[name])}\n" for name in told)
    return f"""#!/bin/bash
said=$(ln -s "$SLURM_JOB_ID" {link} 2>&1)
runs=$(readlink {link}) || {{ echo "this trial cannot be claimed: $said"; exit 1; }}
if [ "$runs" != "$SLURM_JOB_ID" ]; then
  echo "this trial is run by job $runs; to train on, run the last line of its script in a job of your own"
  exit 0
fi
{exports}exec {shlex.join(_ours("wrappers.sxrun", *words))}
"""
