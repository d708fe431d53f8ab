"""`sxrun`: runs a command inside a job, passes signals on to it and tells the scheduler about the run.

With `--log-regex` it also reads progress from what the command prints, so that a training that only logs can take part.
Whatever goes wrong with the reporting, the command runs and its exit status is sxrun's.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from types import FrameType

from wrappers.progress import event, report

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the command's exit status (128 + n when signal n ended it)."""
    parser = argparse.ArgumentParser(
        prog="sxrun",
        description="Run COMMAND inside a Slurm job; signals are passed on, progress is reported.",
        epilog=r"example: sxrun --log-regex 'step (?P<step>\d+) .*loss (?P<loss>\S+)' -- python train.py",
    )
    parser.add_argument(
        "--log-regex",
        type=_regex,
        metavar="REGEX",
        help="read progress from the output: a group named step and one per metric, such as (?P<loss>...)",
    )
    parser.add_argument("--total-steps", type=int, help="steps the job will run in all, for --log-regex")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command given")
    event("start")
    try:
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE if options.log_regex else None,
            preexec_fn=_ignore_checkpoint_signal,
        )
    except OSError as error:
        sys.stderr.write(f"sxrun: {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    _forward_signals(child)
    if options.log_regex:
        _follow(child, options.log_regex, options.total_steps)
    status = child.wait()
    if status >= 0:  # a run that a signal has ended, as a requeue does, is not the end of the job
        event("end")
    return status if status >= 0 else 128 - status


def _regex(text: str) -> re.Pattern[bytes]:
    try:
        pattern = re.compile(text.encode())
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    if "step" not in pattern.groupindex or len(pattern.groupindex) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} needs a group named step and one named after a metric")
    return pattern


def _ignore_checkpoint_signal() -> None:
    """Until the command has its own handler, a checkpoint signal must not end it, as signals do by default."""
    name = os.environ.get("EXPLSCHED_CHECKPOINT_SIGNAL", "USR1").upper().removeprefix("SIG")
    if f"SIG{name}" in signal.Signals.__members__:
        signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_IGN)


def _forward_signals(child: subprocess.Popen[bytes]) -> None:
    """Slurm may signal only the batch script: what reaches us is meant for the command."""

    def forward(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in _FORWARDED:
        signal.signal(number, forward)


def _follow(child: subprocess.Popen[bytes], pattern: re.Pattern[bytes], total_steps: int | None) -> None:
    """Pass the output through, unchanged and at once, and report what the pattern finds in it."""
    if child.stdout is None:
        return
    for line in child.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        match = pattern.search(line)
        if match is None:
            continue
        values = match.groupdict()
        try:
            step = int(values.pop("step"))
            report(step=step, total_steps=total_steps, **{k: float(v) for k, v in values.items() if v is not None})
        except (TypeError, ValueError) as error:
            sys.stderr.write(f"sxrun: no progress in {line!r}: {error}\n")


if __name__ == "__main__":
    sys.exit(main())
