"""`sexplsched profile`: which share of a GPU a service or a training should ask for, measured by running it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import click
import msgspec
import psutil
from msgspec import Meta, Struct

from explsched import process
from explsched.cli import Commands, json_option, output_file
from explsched.job_options.table import LIMIT, MPS, REQUEST, SHARE
from kernel_intercept.profile.requests import WHOLE, FoundRequest, RequestSearch, ShareTrial
from kernel_intercept.profile.store import ProfileError

_EXAMPLES = """\b
examples:
  sexplsched profile inference --qos 0.05 -- python bench.py --batch={batch}
  sexplsched profile training --csv sweep.csv -- python train.py --steps=200

COMMAND runs once per trial, on this machine's GPU, under sxrun with the share that is tried. {batch} is replaced by the
batch size, which EXPLSCHED_BATCH holds as well. The command's last line is JSON: {"throughput": items per second}, for
a service also "latency_s", seconds per batch.
"""
BATCH_VARIABLE = "EXPLSCHED_BATCH"
_MPS_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_COLUMNS = ("batch", "share_percent", "latency_s", "throughput")
_LAST_WORDS_S = 5.0
_Positive = Annotated[float, Meta(gt=0)]


class _Answer(Struct, frozen=True):
    throughput: _Positive
    latency_s: _Positive | None = None


class Program:
    """Runs the program with a share of the GPU, as its jobs will: under sxrun.

    `means` is `time` (request and limit of the kernel manager) or `sms` (CUDA MPS). Of time a kernel is charged what it
    took before: so there is a run that does not count, in which kernels are met.
    """

    def __init__(self, command: Sequence[str], means: str, timeout_s: float) -> None:
        self._command, self._means, self._timeout_s = tuple(command), means, timeout_s
        self._has_met_kernels = means == "sms"
        self._told: set[str] = set()
        beside = Path(sys.executable).parent / "sxrun"
        self._sxrun = str(beside) if beside.exists() else shutil.which("sxrun") or "sxrun"

    def run(self, batch: int, share_percent: int) -> ShareTrial:
        """One trial. Raises `ProfileError` naming it if the program fails or does not say what it measured."""
        if not self._has_met_kernels:
            self._has_met_kernels = True
            self._measured(batch, WHOLE)
        return self._measured(batch, share_percent)

    def _measured(self, batch: int, share_percent: int) -> ShareTrial:
        share = f"{share_percent / 100:g}"
        added = {BATCH_VARIABLE: str(batch)}
        options = [SHARE.flag, "best-effort", REQUEST.flag, share, LIMIT.flag, share]
        if self._means == "sms":
            added[_MPS_VARIABLE], options = str(share_percent), [MPS.flag]
        words = [word.replace("{batch}", str(batch)) for word in self._command]
        what = f"batch {batch} at {share_percent} %"
        argv = [self._sxrun, *options, "--", *words]
        env = {**os.environ, **added}
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            notices, running.stderr = running.stderr, None  # `communicate` would keep them until the end
            passing_on = threading.Thread(target=self._pass_on, args=(notices,), daemon=True)
            passing_on.start()
            try:
                printed, _ = running.communicate(timeout=self._timeout_s)
            except subprocess.TimeoutExpired as error:
                _end(running.pid)
                raise ProfileError(f"{what}: not done after {self._timeout_s:g} s (--timeout)") from error
            finally:
                passing_on.join(_LAST_WORDS_S)  # a process that the program has left behind may hold it open
        if running.returncode:
            raise ProfileError(f"{what}: {words[0]} ended with status {running.returncode}")
        answer = _answer(printed, what)
        latency_s = batch / answer.throughput if answer.latency_s is None else answer.latency_s
        return ShareTrial(batch, share_percent, latency_s, answer.throughput)

    def _pass_on(self, stream: IO[str]) -> None:
        """Print what a trial writes to stderr; what sxrun says is the same in each trial and is printed once."""
        with stream:
            for line in stream:
                if line not in self._told:
                    click.echo(line, err=True, nl=False)
                if line.startswith("sxrun: "):
                    self._told.add(line)


def _end(pid: int) -> None:
    """End a process and all that it has started: a program that hangs may not heed what sxrun passes on."""
    try:
        family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return
    process.stop(found for one in family if (found := process.identify(one)) is not None)


def _answer(printed: str, what: str) -> _Answer:
    lines = [line for line in printed.splitlines() if line.lstrip().startswith("{")]
    if not lines:
        raise ProfileError(f'{what}: printed no line such as {{"throughput": 12.5, "latency_s": 0.08}}')
    try:
        return msgspec.json.decode(lines[-1], type=_Answer)
    except msgspec.MsgspecError as error:
        raise ProfileError(f"{what}: {error}; found {lines[-1][:200]!r}") from error


@click.group(cls=Commands, epilog=_EXAMPLES)
def profile() -> None:
    """Find the GPU share that a service or a training needs."""


_command = click.argument("command", nargs=-1, required=True)
_step = click.option(
    "--step",
    "step_percent",
    type=click.Choice([1, 2, 4, 5, 10, 20, 25]),
    default=5,
    show_default=True,
    help="Step between the shares tried, percent.",
)
_means = click.option(
    "--by",
    "means",
    type=click.Choice(["time", "sms"]),
    default="time",
    show_default=True,
    help="Share of the GPU's time (kernel manager), or of its SMs (CUDA MPS).",
)
_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=600.0,
    help="Time limit of a trial, s.",
)
_csv = click.option(
    "--csv",
    "csv_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=output_file,
    help="Write all trials to this file.",
)


@profile.command(epilog=_EXAMPLES)
@click.option(
    "--qos", "qos_s", type=click.FloatRange(0, min_open=True), required=True, help="Latency target of one batch, s."
)
@click.option(
    "--largest-batch",
    type=click.IntRange(1, 65_536),
    default=64,
    show_default=True,
    help="Largest batch size tried (1, 2, 4 ...).",
)
@_step
@_means
@_timeout
@_csv
@json_option
@_command
def inference(
    *,
    qos_s: float,
    largest_batch: int,
    step_percent: int,
    means: str,
    timeout_s: float,
    csv_path: Path | None,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Find the batch size, request and limit of a service.

    Those with the highest throughput per share of a GPU.
    """
    search = RequestSearch(Program(command, means, timeout_s).run, step_percent)
    _find(search, partial(search.inference, qos_s, largest_batch), csv_path, as_json=as_json)


@profile.command(epilog=_EXAMPLES)
@click.option(
    "--keep",
    "kept",
    type=click.FloatRange(0.01, 1),
    default=0.8,
    show_default=True,
    help="Fraction of the full throughput that the request must keep.",
)
@_step
@_means
@_timeout
@_csv
@json_option
@_command
def training(
    *,
    kept: float,
    step_percent: int,
    means: str,
    timeout_s: float,
    csv_path: Path | None,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Find the request and limit of a training.

    The request keeps most of its throughput, the limit all of it.
    """
    search = RequestSearch(Program(command, means, timeout_s).run, step_percent)
    _find(search, partial(search.training, kept), csv_path, as_json=as_json)


def _find(search: RequestSearch, find: Callable[[], FoundRequest], csv_path: Path | None, *, as_json: bool) -> None:
    """What was tried is written also where nothing was found, or the search was interrupted.

    Last: if the file cannot be written, what a long search has found has been printed.
    """
    try:
        _print(find(), search, as_json=as_json)
    finally:
        if csv_path is not None:
            _write(csv_path, search.trials.values())


def _print(found: FoundRequest, search: RequestSearch, *, as_json: bool) -> None:
    if found.limit_percent == search.step_percent:
        click.echo(
            f"warning: {search.step_percent} % of the GPU is as fast as all of it: does the command use the GPU, and "
            "is its share enforced (`sexplsched doctor`)?",
            err=True,
        )
    request, limit = f"{found.request_percent / 100:g}", f"{found.limit_percent / 100:g}"
    if as_json:
        click.echo(
            json.dumps({**asdict(found), "trials": [asdict(trial) for trial in search.trials.values()]}, indent=1)
        )
        return
    click.echo(f"batch {found.batch}; {len(search.trials)} trials")
    click.echo(f"of a job:      {REQUEST.flag} {request} {LIMIT.flag} {limit}")
    click.echo(f"services.yaml: kernel: {{request: {request}, limit: {limit}}}")


def _write(path: Path, trials: Iterable[ShareTrial]) -> None:
    try:
        with path.open("w", newline="", encoding="ascii") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_COLUMNS)
            writer.writerows(asdict(trial).values() for trial in trials)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be written: {error.strerror}") from error
