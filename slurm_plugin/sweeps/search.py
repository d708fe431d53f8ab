"""A search: Optuna proposes hyper-parameters, Slurm runs them, and no process of ours has to live meanwhile.

Everything that is known of a search is in Slurm and in its directory, `NAME.sweep` beside its file:

    study.journal      Optuna's storage: a trial is begun by a line in it, and has its hyper-parameters from then on; of
                       those that are over it has value and cost
    id                 tells this search from others of the same name, and where it was begun: trials run there
    sweep.yaml         what the search's file says, for passes after the file was made another search's
    trials/N/job.sh    what trial N runs
    trials/N/claim     the job that runs trial N, as the target of a link: the first to make it runs, others end at once
    trials/N/result    what came of trial N
    lock               held during a pass, also by the sbatch of one that was killed

A pass brings all of this up to date and may be killed at any moment: the next one goes on. A trial without a job is
submitted; its number is in the job's comment, by which it is found. With trials under way a pass submits one small job
that makes the next pass when any of them ends, however it ends, and one that does so soon where Slurm would not tell of
a place that becomes free. `search_jobs` has these jobs, and what makes the search go on where a pass is killed or Slurm
refuses one of them.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import optuna
from msgspec import Struct
from optuna.trial import FrozenTrial, TrialState

from explsched.atomic_file import replace_file_durably
from explsched.errors import SlurmError, warn
from sched_policy.model import LARGEST_VALUE, Direction, ProgressPoint
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.config import Config
from slurm_plugin.observation import sweep_record
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.spool import WholeProgressSpool, submitted_s
from slurm_plugin.observation.trainings import has_diverged
from slurm_plugin.sweeps.proposals import proposals
from slurm_plugin.sweeps.search_directory import identify, is_begun, locked
from slurm_plugin.sweeps.search_file import SearchError, SearchFile, keep, kept_command
from slurm_plugin.sweeps.search_jobs import SearchJobs, is_under_way
from slurm_plugin.sweeps.search_study import open_study

_MOST_FAILURES = 10
_RESUMED = "resumed_at"
"""The attribute of the study that has the number of trials from which failures count."""


class Result(Struct, frozen=True):
    """What came of a trial: its best value and the GPU-hours that it had.

    The value is None without a report, and the largest in size, on the bad side, where the training has diverged.
    """

    job: int
    value: float | None
    gpu_h: float


class SearchStoppedError(SearchError):
    """Trials have failed in a row, and a person should look before more are begun."""


class SearchStanding(Struct, frozen=True):
    """How far a search is, after a pass.

    `held` are the jobs of those of its trials under way that Slurm does not start before they are released.
    `best_params` are the hyper-parameters of the best trial.
    """

    name: str
    directory: str
    ended: int
    failed: int
    under_way: int
    held: tuple[int, ...]
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
        self._directory = file.directory(self._path)
        self._jobs = SearchJobs(self._path, file, config, config_path)
        self._spool = WholeProgressSpool(config.progress.spool)
        self._is_kept = False

    def advance(self, now_s: float, *, resumes: bool = False) -> SearchStanding:
        """One pass.

        Raises `SearchError`, `SearchStoppedError` after failures in a row, and `SlurmError` if Slurm does not answer or
        refuses a job. `resumes`: go on after failures in a row, as a person wants it who may have mended the command;
        no pass of Slurm's does.
        """
        try:
            return self._pass(now_s, resumes=resumes and not self.is_made_by_slurm)
        except OSError as error:
            why = f"{self._path}: {error.filename or self._directory}: {error.strerror}"
            raise SearchError(f"{why}; nothing is lost, repeat the command") from error

    @property
    def is_made_by_slurm(self) -> bool:
        """Whether this process is a pass of Slurm's, which has it made again if it fails."""
        return self._jobs.own_job is not None

    def _pass(self, now_s: float, *, resumes: bool) -> SearchStanding:
        beside = self._path.parent
        if beside.suffix == self._directory.suffix and (beside / "id").exists():
            raise SearchError(
                f"{self._path}: is what {beside} keeps of its file: copy it to {beside.parent}, and run that"
            )
        self._directory.mkdir(exist_ok=True)
        with locked(self._directory) as lock:
            if not is_begun(self._directory):
                self._tell_of_namesakes()
            identity = identify(self._path, self._file)
            study = open_study(self._file, self._directory)
            if not self._is_kept:  # `--wait` makes passes for hours, and the file may have changed since
                self._tell_of_another_command(len(study.get_trials(deepcopy=False)))
                keep(self._file, self._path)
                self._is_kept = True
            self._jobs.look(identity, lock)
            try:
                results = self._begin(study, now_s, resumes=resumes)
            except SlurmError:
                if self._jobs.under_way:
                    self._jobs.watch()
                raise
            except SearchError:
                self._jobs.watch()  # what comes of the trials under way is still recorded
                raise
            self._jobs.watch(a_pause_counts=self._would_follow_a_pause(results))
            return self._standing(study, results)

    def _begin(self, study: optuna.Study, now_s: float, *, resumes: bool) -> Mapping[int, Result]:
        """Settle what is over and submit what there is room for; returns what came of trials.

        Those that explsched has paused leave their places to others, once: without a result nobody knows what trials
        cost.
        """
        self._settle(study, now_s)
        results = self._results(study)
        most = self._file.parallel + min(self._jobs.paused, self._file.parallel)
        proposed = proposals(study, self._file)
        since = study.user_attrs.get(_RESUMED, 0)
        while (under_way := len(self._jobs.under_way)) < most and self._may_begin(results, under_way):
            if _failed_in_a_row(results, since):
                since = max(results) + 1
                self._go_on_after_failures(study, since, resumes=resumes)
            if (trial := next(proposed, None)) is None:
                break
            self._jobs.submit(*trial)
        return results

    def _tell_of_namesakes(self) -> None:
        """Warn of trainings that count with those of this search, as a sweep is known by its name and user alone."""
        notes, name = sweep_record.read(self._config.progress.spool), self._file.name
        if former := {note.training for note in notes if note.uid == os.geteuid() and note.sweep == name}:
            warn(
                "sexplsched",
                f"{self._path}: your sweep {name!r} has trainings already ({len(former)}): `sweep show` mixes them "
                "with this search's, and early stopping compares those of the last day; another name keeps them apart",
            )

    def _tell_of_another_command(self, trials: int) -> None:
        """Warn where the trials before ran another command, as where two files have one name: they are one search."""
        if trials and kept_command(self._path, self._file.name) not in (None, self._file.command):
            warn(
                "sexplsched",
                f"{self._path}: command differs from that of the {trials} trials before, with which those to come are "
                "compared, as one search; another name keeps them apart",
            )

    def _settle(self, study: optuna.Study, now_s: float) -> None:
        """Tell Optuna of trials that are over, submit those that have no job."""
        lost = []
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            job, claim = self._jobs.of_trial(trial.number), self._jobs.claim(trial.number)
            if not self._is_whole(trial):
                study.tell(trial.number, state=TrialState.FAIL)
            elif job is not None and is_under_way(job):
                self._jobs.under_way.append(job.job_id)
            elif job is not None or claim is not None:
                self._tell(study, trial, job.job_id if claim is None and job is not None else claim or 0, job, now_s)
            else:
                lost.append(trial)
        for trial in lost:  # now that those under way are known, which are watched if Slurm refuses one
            self._jobs.submit(trial.number, trial.params)

    def _tell(self, study: optuna.Study, trial: FrozenTrial, job_id: int, job: SlurmJob | None, now_s: float) -> None:
        """A trial's value is the best that it reported, whatever ended it; without any it has failed.

        One that has diverged has the worst value, which tells the sampler to look elsewhere.

        Raises OSError while its reports cannot be read: what is told here holds for good.
        """
        path = self._jobs.directory(trial.number) / "result"
        if not path.exists():
            since_s = submitted_s([job] if job is not None and job.job_id == job_id else ())
            progress = self._spool.read({job_id: os.geteuid()}, now_s, since_s).get(job_id, JobProgress())
            if self._spool.fault:
                why = f"the reports of trial {trial.number} cannot be read: {self._spool.fault}"
                raise OSError(errno.EIO, why, str(self._config.progress.spool))
            told = [report for report in progress.reports if report.metric == self._file.metric]
            values = [report.value for report in told if math.isfinite(report.value)]
            best = (min if self._file.direction == "min" else max)(values, default=None)
            points = (ProgressPoint(report.step, 0.0, report.value) for report in told)
            if has_diverged(points, Direction(self._file.direction)):
                best = LARGEST_VALUE if self._file.direction == "min" else -LARGEST_VALUE
            ran_s = {run.restart: run.end_s - run.start_s for run in progress.runs}
            if job is not None and job.job_id == job_id:  # a run may go on for hours after its last report
                ran_s[job.restarts], gpus = self._jobs.run_time_s(job_id), self._jobs.gpus(job)
            else:
                gpus = self._noted_gpus(job_id) or self._file.job.gpus
            result = Result(job_id, best, gpus * sum(ran_s.values()) / 3600)
            path.parent.mkdir(parents=True, exist_ok=True)  # trainings may clean up
            replace_file_durably(path, msgspec.json.encode(result))
        result = self._result(trial.number)
        study.set_user_attr(_cost_key(trial.number), result.gpu_h)
        if result.value is None:
            study.tell(trial.number, state=TrialState.FAIL)
        else:
            study.tell(trial.number, result.value)

    def _noted_gpus(self, job_id: int) -> float:
        """The GPUs of a trial that Slurm has forgotten, as the daemon last saw them; 0 if it never did."""
        training = job_id, os.geteuid(), self._file.name
        notes = reversed(sweep_record.read(self._config.progress.spool))
        return next((note.held_gpus for note in notes if note.training == training), 0.0)

    def _may_begin(self, results: Mapping[int, Result], under_way: int) -> bool:
        """Whether the budget has room for another trial. Those under way are taken to cost what the others did."""
        begun = len(results) + under_way
        if self._file.budget.trials is not None and begun >= self._file.budget.trials:
            return False
        budget, spent = self._file.budget.gpu_hours, sum(result.gpu_h for result in results.values())
        return budget is None or spent + under_way * _usual_gpu_h(results) < budget

    def _would_follow_a_pause(self, results: Mapping[int, Result]) -> bool:
        """Whether another trial would take the place of one that explsched pauses, of which Slurm tells nobody."""
        under_way, points = len(self._jobs.under_way), self._file.grid_points
        is_all = points is not None and len(results) + under_way >= points
        can_pause = self._file.job.may_be_paused and under_way < 2 * self._file.parallel
        return can_pause and not is_all and self._may_begin(results, under_way)

    def _go_on_after_failures(self, study: optuna.Study, since: int, *, resumes: bool) -> None:
        """Count failures from trial `since` on, for whoever resumes the search; else raise `SearchStoppedError`."""
        why = f"the last {_MOST_FAILURES} trials ended without a report of {self._file.metric!r}"
        told = f"{self._path}: {why}: see {self._directory}/trials/*/output"
        if not resumes:
            ends = "; those under way go on" if self._jobs.under_way else ""
            raise SearchStoppedError(f"{told}; no more are begun{ends}; fix the command and run `sweep run` again")
        warn("sexplsched", f"{told}; the search goes on")
        study.set_user_attr(_RESUMED, since)

    def _standing(self, study: optuna.Study, results: Mapping[int, Result]) -> SearchStanding:
        best = self._best(results)
        return SearchStanding(
            self._file.name,
            str(self._directory),
            len(results),
            sum(result.value is None for result in results.values()),
            len(self._jobs.under_way),
            self._jobs.held,
            sum(result.gpu_h for result in results.values()),
            None if best is None else results[best].value,
            best,
            {} if best is None else study.get_trials(deepcopy=False)[best].params,
            finished=not self._jobs.under_way,
        )

    def _best(self, results: Mapping[int, Result]) -> int | None:
        sign = 1.0 if self._file.direction == "min" else -1.0
        known = [(sign * result.value, number) for number, result in results.items() if result.value is not None]
        value, number = min(known, default=(LARGEST_VALUE, None))
        return number if value < LARGEST_VALUE else None

    def _results(self, study: optuna.Study) -> dict[int, Result]:
        """What came of the trials that are over, by their numbers; those that never had a job are left out.

        The study has them, whatever is removed of `trials`. Former releases did not note the cost there, which is done
        now; without its file a trial is taken to have cost what the others did, or else all of its time.
        """
        found, lost, costs_gpu_h = dict[int, Result](), list[FrozenTrial](), study.user_attrs
        for trial in study.get_trials(deepcopy=False):
            if trial.state.is_finished() and self._is_whole(trial):
                gpu_h = costs_gpu_h.get(_cost_key(trial.number))
                try:
                    if gpu_h is None:
                        gpu_h = self._result(trial.number).gpu_h
                        study.set_user_attr(_cost_key(trial.number), gpu_h)
                    found[trial.number] = Result(0, trial.value, gpu_h)
                except FileNotFoundError:
                    lost.append(trial)
        usual = _usual_gpu_h(found) if found else None
        return found | {
            trial.number: Result(0, trial.value, self._most_gpu_h(trial) if usual is None else usual) for trial in lost
        }

    def _most_gpu_h(self, trial: FrozenTrial) -> float:
        """What a trial has cost at most: its GPUs from its beginning, before it waited, until its end was seen."""
        lasted = trial.duration
        return 0.0 if lasted is None else self._file.job.gpus * lasted.total_seconds() / 3600

    def _is_whole(self, trial: FrozenTrial) -> bool:
        """Whether the trial has all its hyper-parameters. Whoever began it may have been killed before."""
        return trial.params.keys() == self._file.space.keys()

    def _result(self, number: int) -> Result:
        return msgspec.json.decode((self._jobs.directory(number) / "result").read_bytes(), type=Result)


def _failed_in_a_row(results: Mapping[int, Result], since: int) -> bool:
    """Whether the last trials have failed, all begun since. One under way breaks that: those that fail end sooner."""
    last = sorted(results)[-_MOST_FAILURES:]
    if len(last) < _MOST_FAILURES or last[0] < since or last[-1] - last[0] >= _MOST_FAILURES:
        return False
    return all(results[number].value is None for number in last)


def _cost_key(number: int) -> str:
    """The attribute of the study that has the GPU-hours of a trial. Those of trials have no public way to be set."""
    return f"gpu_h.{number}"


def _usual_gpu_h(results: Mapping[int, Result]) -> float:
    """The mean cost of the trials that are over."""
    return sum(result.gpu_h for result in results.values()) / len(results) if results else 0.0
