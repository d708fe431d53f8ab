"""What `sxrun` reads a command's progress from: what it prints, or a file that it writes."""

from __future__ import annotations

import argparse
import os
import subprocess
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from explsched.errors import warn
from explsched.job_options.command_line import read
from explsched.job_options.table import FOLLOW, FOLLOWING, STEP_KEY, VALUE_KEY
from wrappers.event_files import EventReporter, EventTail
from wrappers.follow import POLL_S, LogTail, Reporter, default_metric, json_reader, log_reader, row_reader
from wrappers.output import Follower, OutputReader

_ROWS = (".csv", ".tsv")
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_EVENTS = "tfevents"


class Source(NamedTuple):
    """What reports progress, and the file that it is read from; without one it is what the command prints."""

    reporter: Reporter
    tail: LogTail | None = None

    def follow(self, child: subprocess.Popen[bytes]) -> Follower:
        """Read what the command prints or writes, from now on."""
        if self.tail is None:
            output = OutputReader(child, self.reporter)
            return Follower(self.reporter, output.follow, output.end)
        ended = threading.Event()
        return Follower(self.reporter, partial(self.tail.follow, self.reporter, partial(ended.wait, POLL_S)), ended.set)

    def tell_silence(self) -> None:
        """Say so if a command that has ended well has told no progress."""
        if not self.reporter.has_reported:
            place = self.tail or "what the command printed on standard output"
            self.reporter.warn(f"no progress was found in {place}: explsched gets none")


def options_of(options: argparse.Namespace, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """What is followed and how, by the options' names, and warnings about variables that cannot be used."""
    found = read(environment, FOLLOWING)
    given = {option.name: value for option in FOLLOWING if (value := getattr(options, option.yaml_key))}
    return found.values | given, list(found.warnings)


def chosen(options: argparse.Namespace, following: Mapping[str, str], environment: Mapping[str, str]) -> Source | None:
    """The source that options or variables name; `following` is what `options_of` found.

    Of a step's tasks only the first has one: the others see the same file, or print the losses of their own parts.
    Raises ValueError for what can never be read.
    """
    metric = default_metric(environment)
    source = None
    if options.log_regex:
        source = Source(Reporter(log_reader(options.log_regex, metric), "sxrun", options.total_steps))
    elif options.metrics_jsonl:
        value = following.get(VALUE_KEY.name)
        reader = json_reader(following.get(STEP_KEY.name, "step"), value, value or metric)
        source = Source(Reporter(reader, "sxrun", options.total_steps), LogTail(options.metrics_jsonl))
    elif FOLLOW.name in following:
        source = _followed(options, following, metric)
    return source if environment.get("SLURM_PROCID", "0") == "0" else None


def _followed(options: argparse.Namespace, following: Mapping[str, str], metric: str) -> Source | None:
    """As `followed`; but where variables alone name what cannot be followed, the command runs all the same."""
    try:
        return Source(*followed(following, "sxrun", options.total_steps, metric))
    except ValueError as error:
        if options.follow or options.step_key:
            raise
        warn("sxrun", f"{FOLLOW.variable} is ignored: {error}")
        return None


def followed(values: Mapping[str, str], program: str, total_steps: int | None, metric: str) -> tuple[Reporter, LogTail]:
    """What reads the file that `values` name (by the options' names), and what it reports to.

    Raises ValueError for a name that tells no kind of file, and for a step's name where there is none.
    """
    path = Path(values[FOLLOW.name])
    step, value = values.get(STEP_KEY.name), values.get(VALUE_KEY.name)
    is_directory = os.path.isdir(path) or values[FOLLOW.name].endswith("/")  # noqa: PTH112  Path.is_dir may raise
    if is_directory or _EVENTS in path.name:
        if step is not None:
            raise ValueError(f"{STEP_KEY.flag} {step}: TensorBoard's events have their step without a name")
        reporter = EventReporter(value, program, total_steps, metric)
        return reporter, EventTail(path) if is_directory else LogTail(path)
    if path.suffix in _ROWS:
        return Reporter(row_reader(path, step or "step", value, metric), program, total_steps), LogTail(path)
    if path.suffix in _JSON_LINES:
        return Reporter(json_reader(step or "step", value, metric), program, total_steps), LogTail(path)
    accepted = ", ".join((*_ROWS, *_JSON_LINES))
    raise ValueError(
        f"{FOLLOW.flag} {path}: unknown kind of file; accepted: {accepted}, "
        f"a name with {_EVENTS}, or TensorBoard's directory"
    )
