r"""`sxreport`: reports progress from a shell script, or from a log that it follows.

sxreport --step 10 --loss 0.5 [--metric accuracy=0.9] [--total-steps 100]
sxreport --follow train.log --regex 'step=(?P<step>\d+).*loss=(?P<value>\S+)' &
sxreport --jsonl metrics.jsonl --step-key global_step --value-key eval_loss &
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from explsched.checkpoint import DEFAULT_SIGNAL, signal_name
from explsched.errors import warn
from explsched.job_options.command_line import add_version
from explsched.job_options.table import CHECKPOINT, FOLLOW, METRIC, STEP_KEY, VALUE_KEY
from explsched.process_signals import signal_number
from explsched.progress import event, report_values
from wrappers.follow import POLL_S, LineReader, LogTail, Reporter, json_reader, log_reader

_LARGEST_PID = 2**31 - 1
_LOSS = "--loss"
_EPILOG = rf"""
exit status: 0, or 2 for wrong usage. A report that cannot be written is no error: the job continues.

environment:
  {CHECKPOINT.variable:<23}  the signal that asks for a checkpoint (default: {DEFAULT_SIGNAL}); ignored while following
  {METRIC.variable:<23}  the metric that is followed (default: loss)
  EXPLSCHED_SPOOL          directory of the progress files (default: /var/spool/explsched/progress)
  EXPLSCHED_PROGRESS_FILE  file to report to instead, also outside of jobs

examples:
  sxreport --step 10 --loss 0.5 --metric accuracy=0.9 --total-steps 100
  sxreport --follow train.log --regex 'step=(?P<step>\d+).*loss=(?P<value>\S+)' &
"""


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, or 2 for a call that cannot be right."""
    parser = options_parser()
    options = parser.parse_args(_with_values_joined(sys.argv[1:] if arguments is None else arguments))
    if options.event:
        event(options.event, options.step)
        return 0
    try:
        if options.follow or options.jsonl:
            _follow(options, _reader(options))
            return 0
        metrics = dict(options.metric)
        if options.step is None or (options.loss is None and not metrics):
            raise ValueError("--step and at least one of --loss and --metric are needed, or --follow or --jsonl")
        loss = {} if options.loss is None else {"loss": options.loss}
        report_values(options.step, {**loss, **metrics}, options.total_steps)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    return 0


def options_parser() -> argparse.ArgumentParser:
    """The command's options; its man page and completion are made from them, too."""
    parser = argparse.ArgumentParser(
        prog="sxreport",
        description="Report a job's progress to explsched.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--step", type=int, help="steps done so far")
    parser.add_argument(_LOSS, type=float, help="the same as --metric loss=VALUE")
    parser.add_argument(
        "--metric",
        type=_metric,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a metric; repeatable",
    )
    parser.add_argument("--total-steps", type=int, help="total number of steps")
    parser.add_argument("--event", choices=("start", "checkpoint", "end"), help="record an event of the run instead")
    follow = parser.add_argument_group("follow a file until the job script (the parent process) or --pid ends")
    source = follow.add_mutually_exclusive_group()
    source.add_argument(FOLLOW.flag, type=Path, metavar="LOG", help="read progress from a log, by --regex")
    source.add_argument("--jsonl", type=Path, metavar="FILE", help="read progress from a file of JSON lines")
    follow.add_argument("--regex", help="groups: step, and value or names of metrics")
    follow.add_argument(STEP_KEY.flag, default="step", metavar="KEY", help="key of the step (default: step)")
    follow.add_argument(VALUE_KEY.flag, metavar="KEY", help="key of the value (default: the metric's name)")
    follow.add_argument("--value-metric", metavar="NAME", help="metric that the value belongs to")
    follow.add_argument("--pid", type=_positive, help="end with this process instead of the parent")
    follow.add_argument("--from-start", action="store_true", help="also read what the file already contains")
    add_version(parser)
    return parser


def _with_values_joined(words: Sequence[str]) -> list[str]:
    """`--loss` and its value as one word: argparse takes -1e-05 and -inf for options where they stand alone."""
    joined: list[str] = []
    for word in words:
        if joined[-1:] == [_LOSS] and not word.startswith("--"):
            joined[-1] = f"{_LOSS}={word}"
        else:
            joined.append(word)
    return joined


def _reader(options: argparse.Namespace) -> LineReader:
    if options.jsonl:
        return json_reader(options.step_key, options.value_key, options.value_metric)
    if not options.regex:
        raise ValueError("--follow needs --regex")
    return log_reader(options.regex, options.value_metric, "--regex")


def _follow(options: argparse.Namespace, reader: LineReader) -> None:
    stopped = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        # Meant for the training, but Slurm may send it to every process of the job.
        signal.signal(signal_number(signal_name(os.environ)), signal.SIG_IGN)
    except ValueError as error:
        warn("sxreport", f"{CHECKPOINT.variable}: {error}")
    gone = _watch(options.pid or os.getppid())
    tail = LogTail(options.follow or options.jsonl, from_start=options.from_start)
    tail.follow(Reporter(reader, "sxreport", options.total_steps), lambda: stopped or gone() or stopped)


def _watch(pid: int) -> Callable[[], bool]:
    """A function that waits for a poll interval, or less if the process has ended, and tells whether it has."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return lambda: True
    except OSError as error:  # kernels before 5.3, and sandboxes
        warn("sxreport", f"watching process {pid} through /proc: {error.strerror}")
        return lambda: _sleep_and_look(pid)
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return lambda: bool(poller.poll(POLL_S * 1000))


def _sleep_and_look(pid: int) -> bool:
    time.sleep(POLL_S)
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in ("Z", "X")


def _metric(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, float(value)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _LARGEST_PID:
        raise argparse.ArgumentTypeError(f"{text!r} is not a process id")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
