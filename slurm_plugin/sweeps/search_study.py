"""Optuna's study of a search, in `study.journal` of its directory: opened, whatever was killed or broke before."""

from __future__ import annotations

import os
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from slurm_plugin.sweeps.proposals import sampler
from slurm_plugin.sweeps.search_file import SearchError, SearchFile

RESTORE = "restore it from a backup, or choose another name"


def open_study(file: SearchFile, directory: Path) -> optuna.Study:
    """The study, made where none is and no trial was begun. Under the search's lock only.

    Raises `SearchError` if it is lost or damaged: trials of a new one would be given the results of the former.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = directory / "study.journal"
    _mend(journal)
    try:
        storage = JournalStorage(JournalFileBackend(str(journal)))
        known = any(study.study_name == file.name for study in storage.get_all_studies())
    except (ValueError, KeyError) as error:
        raise SearchError(f"{journal}: is damaged ({error}): {RESTORE}") from error
    if known:  # creating it would add a line
        study = optuna.load_study(study_name=file.name, storage=storage)
    elif any(directory.glob("trials/*")):
        raise SearchError(f"{journal}: is lost, though trials have been begun: {RESTORE}")
    else:
        study = optuna.create_study(
            study_name=file.name, storage=storage, direction="minimize" if file.direction == "min" else "maximize"
        )
    study.sampler = sampler(file, len(study.get_trials(deepcopy=False)))
    return study


def _mend(journal: Path) -> None:
    """Take away what a process that was killed left, half a line or Optuna's own lock."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.exists():
        data = journal.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(journal, whole)
