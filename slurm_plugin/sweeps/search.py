"""A search: Optuna proposes hyper-parameters, Slurm runs them, and no process of ours has to live meanwhile.

Everything that is known of a search is in Slurm and in its directory, `NAME.sweep` beside its file:

    study.journal      Optuna's storage: a trial is begun by a line in it, and has its hyper-parameters from then on
    id                 tells this search from others of the same name, and where it was begun: trials run there
    trials/N/job.sh    what trial N runs
    trials/N/claim     the job that runs trial N, as the target of a link: the first to make it runs, others end at once
    trials/N/result    what came of trial N
    lock               held during a pass, also by the sbatch of one that was killed

A pass brings all of this up to date and may be killed at any moment: the next one goes on. A trial without a job is
submitted; its number is in the job's comment, by which it is found. With trials under way a pass submits one small job
that makes the next pass when any of them ends, however it ends. Such a job first submits another for `_AGAIN_S` later,
which is taken back at its end: so the search goes on where the job is killed, or Slurm does not take a trial.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import shlex
import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import optuna
from msgspec import Struct
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from explsched import preemption_record
from explsched.atomic_file import create_file_durably, replace_file_durably
from explsched.errors import SlurmError
from explsched.job_options.values import PAIRS_BYTES
from explsched.parameters import listed, of_value, shown
from slurm_plugin.client import process
from slurm_plugin.client.changes import CancelJob
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.config import Config
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.spool import WholeProgressSpool, submitted_s
from slurm_plugin.sweeps.search_file import TRIAL, SearchError, SearchFile, SpaceSection, Value, argument
from wrappers import sxbatch

_OURS = "explsched"
"""What comments of our jobs begin with."""

_TRIAL = "explsched-trial:"
_NEXT = "explsched-next:"
_UNDER_WAY = frozenset({
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"),
    *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
})  # fmt: skip
_MOST_WATCHED = 100
"""Trials of which the next pass is a dependent: each lengthens a line that slurmctld reads again and again.

With more of them under way another pass is made after `_AGAIN_S`, for those that are not watched."""
_MOST_FAILURES = 10
_AGAIN_S = 600
"""Until a pass of Slurm's that did not come to its end is made again."""


class Result(Struct, frozen=True):
    """What came of a trial: its best value (None without a report) and the GPU-hours that it had."""

    job: int
    value: float | None
    gpu_h: float


class _Identity(NamedTuple):
    """What tells a search from others of the same name, and the directory in which its trials run."""

    id: str
    working_directory: Path


class SearchStanding(Struct, frozen=True):
    """How far a search is, after a pass. `best_params` are the hyper-parameters of the best trial."""

    name: str
    directory: str
    ended: int
    failed: int
    under_way: int
    gpu_h: float
    best: float | None
    best_trial: int | None
    best_params: Mapping[str, object]
    finished: bool


class Search:
    """One search, by its file. Raises `SearchError` where the directory is another search's."""

    def __init__(self, path: Path, file: SearchFile, config: Config, config_path: Path | None) -> None:
        self._path = path.absolute()
        self._file = file
        self._config = config
        self._config_path = config_path
        self._directory = self._path.with_name(f"{file.name}.sweep")
        self._client = CliClient(config.slurm.timeout_s)
        self._spool = WholeProgressSpool(config.progress.spool)

    def advance(self, now_s: float) -> SearchStanding:
        """One pass. Raises `SearchError`, and `SlurmError` if Slurm does not answer or refuses a job."""
        try:
            return self._pass(now_s)
        except OSError as error:
            where = error.filename or self._directory
            raise SearchError(
                f"{self._path}: {where}: {error.strerror}; nothing is lost, repeat the command"
            ) from error

    def _pass(self, now_s: float) -> SearchStanding:
        self._directory.mkdir(exist_ok=True)
        with self._locked() as lock:
            self._id, self._working_directory = self._identify()
            study = self._study()
            jobs = self._client.tagged_jobs(_OURS)
            passes = [job for job in jobs if job.comment == f"{_NEXT}{self._id}"]
            waiting = [job.job_id for job in passes if job.state == "PENDING"]
            is_of_slurm = any(job.state == "RUNNING" for job in passes)
            again = [self._pass_later([f"--begin=now+{_AGAIN_S}"], lock)] if is_of_slurm else waiting.copy()
            under_way: list[int] = []
            try:
                results = self._begin(study, self._jobs_of_trials(jobs), under_way, again, lock, now_s)
            except SlurmError:
                if under_way:
                    self._watch(under_way, {*waiting, *again}, lock)
                raise
            except SearchError:
                self._watch([], {*again}.difference(waiting), lock)
                raise
            self._watch(under_way, {*waiting, *again}, lock)
            return self._standing(study, results, under_way)

    def _begin(
        self,
        study: optuna.Study,
        by_trial: Mapping[int, SlurmJob],
        under_way: list[int],
        again: list[int],
        lock: int,
        now_s: float,
    ) -> Mapping[int, Result]:
        """Settle what is over and submit what there is room for; returns what came of trials.

        The jobs under way are added to `under_way` one by one, so that they are known if Slurm refuses the next. Those
        that explsched has paused leave their places to others, once: without a result nobody knows what trials cost.
        """
        self._settle(study, by_trial, under_way, lock, now_s)
        results = self._results(study)
        paused = sum(job.job_id in under_way and _is_paused(job) for job in by_trial.values())
        most = self._file.parallel + min(paused, self._file.parallel)
        proposals = self._grid(study) if self._file.sampler == "grid" else self._sampled(study)
        while len(under_way) < most and self._may_begin(list(results.values()), len(under_way)):
            if (trial := next(proposals, None)) is None:
                break
            if under_way and not again:  # while there is a place: trials may take all that Slurm has for the user
                again.append(self._pass_later([f"--dependency=afterany:{under_way[0]}"], lock))
            under_way.append(self._submit(*trial, lock))
        return results

    def _sampled(self, study: optuna.Study) -> Iterator[tuple[int, Mapping[str, Value]]]:
        """New trials without end: number and hyper-parameters."""
        while True:
            trial = study.ask(self._distributions())
            yield trial.number, trial.params

    def _grid(self, study: optuna.Study) -> Iterator[tuple[int, Mapping[str, Value]]]:
        """A new trial for each point of the grid that none has, in the order of the seed.

        Optuna's own grid sampler takes a point for tried whose trial was begun by half, and ends by an error.
        """
        trials = study.get_trials(deepcopy=False)
        number = itertools.count(len(trials))
        tried = {_point(trial.params) for trial in trials}
        points = list(itertools.product(*(one.values for one in self._file.space.values())))
        for place in np.random.default_rng(self._file.seed).permutation(len(points)):
            params = dict(zip(self._file.space, points[place], strict=True))
            if _point(params) not in tried:
                study.add_trial(
                    create_trial(state=TrialState.RUNNING, params=params, distributions=self._distributions())
                )
                yield next(number), params

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The lock, which sbatch inherits: if we are killed while it runs, the next pass waits for its end."""
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _identify(self) -> _Identity:
        """Which search this is; what must not change with it is compared with what it was begun with.

        Former releases did not note the directory; then it is that of this pass.
        """
        fixed = {"space": self._file.space, "metric": self._file.metric, "direction": self._file.direction}
        space = msgspec.json.encode(list(fixed.values())).decode()
        path = self._directory / "id"
        if not path.exists():
            told = {"id": uuid.uuid4().hex[:16], "space": space, "working_directory": str(Path.cwd())}
            create_file_durably(path, json.dumps(told))
        begun = json.loads(path.read_text())
        if begun["space"] != space:
            pairs = zip(fixed, json.loads(begun["space"]), json.loads(space), strict=True)
            differ = ", ".join(name for name, before, now in pairs if before != now)
            raise SearchError(
                f"{self._path}: differs from when {self._directory} was created: {differ}; choose another name, or "
                "remove that directory"
            )
        return _Identity(str(begun["id"]), Path(begun.get("working_directory") or Path.cwd()))

    def _study(self) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        journal = self._directory / "study.journal"
        _mend(journal)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal))),
            study_name=self._file.name,
            direction="minimize" if self._file.direction == "min" else "maximize",
            load_if_exists=True,
        )
        study.sampler = _sampler(self._file, len(study.get_trials(deepcopy=False)))
        return study

    def _jobs_of_trials(self, jobs: Sequence[SlurmJob]) -> dict[int, SlurmJob]:
        """The job of each trial that Slurm remembers; of several the one that claimed it, else the first."""
        mark, found = f"{_TRIAL}{self._id}:", dict[int, SlurmJob]()
        for job in sorted(jobs, key=lambda job: job.job_id, reverse=True):
            for word in job.comment.split():
                number = word.removeprefix(mark)
                if word.startswith(mark) and number.isdecimal():
                    known = found.get(int(number))
                    if known is None or known.job_id != self._claim(int(number)):
                        found[int(number)] = job
        return found

    def _settle(
        self, study: optuna.Study, by_trial: Mapping[int, SlurmJob], under_way: list[int], lock: int, now_s: float
    ) -> None:
        """Tell Optuna of trials that are over, submit those that have no job; adds the jobs under way."""
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            job, claim = by_trial.get(trial.number), self._claim(trial.number)
            if trial.params.keys() != self._file.space.keys():
                study.tell(trial.number, state=TrialState.FAIL)  # whoever began it was killed before it had them all
            elif job is not None and job.state in _UNDER_WAY:
                under_way.append(job.job_id)
            elif job is not None or claim is not None:
                self._tell(study, trial, job.job_id if claim is None and job is not None else claim or 0, job, now_s)
            else:
                under_way.append(self._submit(trial.number, trial.params, lock))

    def _tell(self, study: optuna.Study, trial: FrozenTrial, job_id: int, job: SlurmJob | None, now_s: float) -> None:
        """A trial's value is the best that it reported, whatever ended it; without any it has failed.

        Raises OSError while its reports cannot be read: what is told here holds for good.
        """
        path = self._trial_directory(trial.number) / "result"
        if not path.exists():
            since_s = submitted_s([job] if job is not None and job.job_id == job_id else ())
            progress = self._spool.read({job_id: os.geteuid()}, now_s, since_s).get(job_id, JobProgress())
            if self._spool.fault:
                why = f"the reports of trial {trial.number} cannot be read: {self._spool.fault}"
                raise OSError(errno.EIO, why, str(self._config.progress.spool))
            values = [report.value for report in progress.reports if report.metric == self._file.metric]
            best = (min if self._file.direction == "min" else max)(values, default=None)
            ran_s, gpus = {run.restart: run.end_s - run.start_s for run in progress.runs}, self._file.job.gpus
            if job is not None and job.job_id == job_id:  # a run may go on for hours after its last report
                ran_s[job.restarts], gpus = self._client.run_time_s(job_id), job.gpus
            result = Result(job_id, best, gpus * sum(ran_s.values()) / 3600)
            replace_file_durably(path, msgspec.json.encode(result))
        value = self._result(trial.number).value
        if value is None:
            study.tell(trial.number, state=TrialState.FAIL)
        else:
            study.tell(trial.number, value)

    def _may_begin(self, results: Sequence[Result], under_way: int) -> bool:
        """Whether the budget has room for another trial. Those under way are taken to cost what the others did."""
        begun = len(results) + under_way
        if self._file.budget.trials is not None and begun >= self._file.budget.trials:
            return False
        last = results[-_MOST_FAILURES:]
        if len(last) == _MOST_FAILURES and all(result.value is None for result in last):
            raise SearchError(
                f"{self._path}: the last {_MOST_FAILURES} trials ended without a report of {self._file.metric!r}: see "
                f"{self._directory}/trials/*/output; fix the command, remove {self._directory} and run again"
            )
        spent = sum(result.gpu_h for result in results)
        usual = spent / len(results) if results else 0.0
        budget = self._file.budget.gpu_hours
        return budget is None or spent + under_way * usual < budget

    def _submit(self, number: int, params: Mapping[str, Value], lock: int) -> int:
        """Submit a trial, through sxbatch's own code; returns the job's id."""
        directory = self._trial_directory(number)
        directory.mkdir(parents=True, exist_ok=True)
        values = {name: of_value(value) for name, value in params.items()}
        own = [word.replace(TRIAL, str(directory)) for word in (*self._file.job.sxrun, "--", *self._file.command)]
        arguments = [f"--{name}={argument(value)}" for name, value in params.items()]
        script = directory / "job.sh"
        replace_file_durably(script, _script(directory / "claim", [*own, *arguments]))
        job, told = self._file.job, listed(values)
        words = [f"--sweep={self._file.name}", f"--metric={self._file.metric}", f"--direction={self._file.direction}"]
        words += [f"--checkpoint={job.checkpoint}"] if job.checkpoint else []
        words += ["--early-stop"] if job.early_stop else []
        simple = len(told.encode()) <= PAIRS_BYTES and told.isprintable()
        simple = simple and not any("," in shown(value) for value in values.values())
        words += [f"--params={told}"] if simple else []
        words += [f"--comment={_TRIAL}{self._id}:{number}", f"--job-name={self._file.name}-{number}"]
        words += ["--nodes=1", "--ntasks=1", f"--time={job.time}", f"--output={directory}/output"]
        words += [f"--chdir={self._working_directory}"]
        words += [f"--gpus-per-node={job.gpus}"] if job.gpus else []
        try:
            prepared = sxbatch.prepare(*sxbatch.read([*words, *job.sbatch, str(script)]))
        except ValueError as error:
            raise SearchError(f"{self._path}: job: {error}") from error
        return self._sbatch(prepared.argv, prepared.environment, lock)

    def _sbatch(self, argv: Sequence[str], added: Mapping[str, str], lock: int, script: str | None = None) -> int:
        environment = process.submission(process.environment(added))
        answer = process.run(
            [argv[0], "--parsable", *argv[1:]], self._config.slurm.timeout_s, environment, script, (lock,)
        )
        job_id = answer.out.strip().partition(";")[0]
        if answer.returncode or not job_id.isdecimal():
            raise SlurmError(f"sbatch refused a job of {self._path}: {(answer.err or answer.out).strip()}")
        return int(job_id)

    def _watch(self, under_way: Sequence[int], waiting: Set[int], lock: int) -> None:
        """Have Slurm make the next pass when any of the trials ends, and take back the passes that wait.

        Where Slurm takes no more jobs of the user these stay, so that the search goes on.
        """
        if under_way:
            ends = "?".join(f"afterany:{job_id}" for job_id in under_way[:_MOST_WATCHED])
            try:
                self._pass_later([f"--dependency={ends}"], lock)
            except SlurmError:
                if not waiting:
                    raise
                return
        if len(under_way) > _MOST_WATCHED:
            self._pass_later([f"--begin=now+{_AGAIN_S}"], lock)
        self._client.apply([CancelJob(job_id) for job_id in sorted(waiting)])

    def _pass_later(self, when: Sequence[str], lock: int) -> int:
        """Submit a small job that makes a pass; returns its id."""
        options = [] if self._config_path is None else ["--config", str(self._config_path.absolute())]
        command = [sys.executable, "-m", "explsched.cli", "sweep", "run", str(self._path), *options]
        script = f"#!/bin/sh\nexec {shlex.join(command)}\n"
        words = [*when, f"--comment={_NEXT}{self._id}", f"--job-name={self._file.name}-next", "--ntasks=1"]
        words += ["--time=10", "--open-mode=append", f"--output={self._directory}/passes.log"]
        words += [f"--chdir={self._working_directory}"]
        shared = ("partition", "account", "qos")
        words += [word for name, given in self._file.job.sbatch_options() if name in shared for word in given]
        return self._sbatch(["sbatch", *words], {}, lock, script)

    def _standing(self, study: optuna.Study, results: Mapping[int, Result], under_way: Sequence[int]) -> SearchStanding:
        sign = 1.0 if self._file.direction == "min" else -1.0
        known = [(sign * result.value, number) for number, result in results.items() if result.value is not None]
        best = min(known)[1] if known else None
        return SearchStanding(
            self._file.name,
            str(self._directory),
            len(results),
            sum(result.value is None for result in results.values()),
            len(under_way),
            sum(result.gpu_h for result in results.values()),
            None if best is None else results[best].value,
            best,
            {} if best is None else study.trials[best].params,
            finished=not under_way,
        )

    def _distributions(self) -> dict[str, BaseDistribution]:
        return {name: _distribution(one) for name, one in self._file.space.items()}

    def _trial_directory(self, number: int) -> Path:
        return self._directory / "trials" / str(number)

    def _claim(self, number: int) -> int | None:
        """The job that ran the trial, None if none has started."""
        try:
            return int(str((self._trial_directory(number) / "claim").readlink()))
        except FileNotFoundError:
            return None

    def _results(self, study: optuna.Study) -> dict[int, Result]:
        """What came of the trials that are over, by their numbers; those that never had a job are left out."""
        over = (trial.number for trial in study.get_trials(deepcopy=False) if trial.state.is_finished())
        return {number: self._result(number) for number in over if (self._trial_directory(number) / "result").exists()}

    def _result(self, number: int) -> Result:
        return msgspec.json.decode((self._trial_directory(number) / "result").read_bytes(), type=Result)


def _is_paused(job: SlurmJob) -> bool:
    """Whether the job waits because explsched has preempted its last run."""
    try:
        latest = preemption_record.read(job.admin_comment, job.submit_s, job.restarts).latest
    except preemption_record.RecordError:
        return False
    return job.state == "PENDING" and bool(latest) and latest[-1].run == job.restarts - 1


def _script(claim: Path, words: Sequence[str]) -> str:
    """The batch script of a trial. A requeued job finds its own claim."""
    link = shlex.quote(str(claim))
    return f"""#!/bin/bash
said=$(ln -s "$SLURM_JOB_ID" {link} 2>&1)
runs=$(readlink {link}) || {{ echo "this trial cannot be claimed: $said"; exit 1; }}
if [ "$runs" != "$SLURM_JOB_ID" ]; then
  echo "this trial is run by job $runs"
  exit 0
fi
exec sxrun {shlex.join(words)}
"""


def _mend(journal: Path) -> None:
    """Under our lock: take away what a process that was killed left, half a line or Optuna's own lock."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():
        data = journal.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(journal, whole)


def _distribution(one: SpaceSection) -> BaseDistribution:
    if one.values:
        return CategoricalDistribution(one.values)
    low, high = one.low or 0.0, one.high or 0.0
    if one.integer:
        return IntDistribution(int(low), int(high), log=one.log)
    return FloatDistribution(low, high, log=one.log)


def _point(params: Mapping[str, Value]) -> frozenset[tuple[str, str]]:
    """What tells the hyper-parameters of one trial from those of another, as its command does."""
    return frozenset((name, argument(value)) for name, value in params.items())


def _sampler(file: SearchFile, begun: int) -> BaseSampler:
    """The sampler of a pass that finds so many trials: it must not draw again what an earlier pass has drawn."""
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    if file.sampler == "tpe":
        return TPESampler(seed=file.seed + begun, constant_liar=True)
    return RandomSampler(seed=file.seed + begun)
