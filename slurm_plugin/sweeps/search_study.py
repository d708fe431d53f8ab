"""Optuna's study of a search, in `study.journal` of its directory: opened, whatever was killed or broke before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from slurm_plugin.sweeps.proposals import sampler
from slurm_plugin.sweeps.search_directory import RESTORE
from slurm_plugin.sweeps.search_file import SearchError, SearchFile


def open_study(file: SearchFile, directory: Path) -> optuna.Study:
    """The study, made where none is and no trial was begun. Under the search's lock only.

    Raises `SearchError` if it is lost or damaged: trials of a new one would be given the results of the former.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = directory / "study.journal"
    _mend(journal)
    try:
        study = _opened(file, JournalStorage(JournalFileBackend(str(journal))))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SearchError(f"{journal}: is damaged ({error}): {RESTORE}") from error
    trials = len(study.get_trials(deepcopy=False))
    # Of each trial the study has a line before its directory is made.
    begun = 1 + max((int(one.name) for one in directory.glob("trials/*") if one.name.isdecimal()), default=-1)
    if trials < begun:
        raise SearchError(f"{journal}: has {trials} trials, of at least {begun} that have been begun: {RESTORE}")
    study.sampler = sampler(file, trials)
    return study


def _opened(file: SearchFile, storage: JournalStorage) -> optuna.Study:
    if any(study.study_name == file.name for study in storage.get_all_studies()):  # creating it would add a line
        return optuna.load_study(study_name=file.name, storage=storage)
    direction: Literal["minimize", "maximize"] = "minimize" if file.direction == "min" else "maximize"
    return optuna.create_study(study_name=file.name, storage=storage, direction=direction)


def _mend(journal: Path) -> None:
    """Take away what a process that was killed left, half a line or Optuna's own lock."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():
        data = journal.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(journal, whole)
