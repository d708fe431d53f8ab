"""Which files sxrun and sxreport can follow, told by their names, and what reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from explsched.job_options import FOLLOW, STEP_KEY, VALUE_KEY
from wrappers.event_file import EventReporter, EventTail
from wrappers.follow import LogTail, Reporter, default_metric, json_reader, row_reader

_ROWS = (".csv", ".tsv")
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_EVENTS = "tfevents"


def followed(values: Mapping[str, str], program: str, total_steps: int | None) -> tuple[Reporter, LogTail]:
    """What reads the file that `values` name (by the options' names), and what it reports to.

    Raises ValueError for a name that tells no kind of file, and for a step's name where there is none.
    """
    path = Path(values[FOLLOW.name])
    step, value = values.get(STEP_KEY.name), values.get(VALUE_KEY.name)
    is_directory = path.is_dir() or values[FOLLOW.name].endswith("/")
    if is_directory or _EVENTS in path.name:
        if step is not None:
            raise ValueError(f"{STEP_KEY.flag} {step}: TensorBoard's events have their step without a name")
        return EventReporter(value, program, total_steps), EventTail(path) if is_directory else LogTail(path)
    if path.suffix in _ROWS:
        return Reporter(row_reader(path, step or "step", value), program, total_steps), LogTail(path)
    if path.suffix in _JSON_LINES:
        return Reporter(json_reader(step or "step", value, default_metric()), program, total_steps), LogTail(path)
    accepted = ", ".join((*_ROWS, *_JSON_LINES))
    raise ValueError(
        f"{FOLLOW.flag} {path}: the name tells no kind of file; accepted: {accepted}, "
        f"a name with {_EVENTS}, or TensorBoard's directory"
    )
