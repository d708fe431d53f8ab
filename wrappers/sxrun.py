"""`sxrun`: runs a command inside a job, passes signals on to it and tells the scheduler about the run.

It reports `--key=value` and `--key value` of the command as the training's hyper-parameters. With `--log-regex` or
`--follow` it also reads progress from what the command prints or writes, so that a training that only logs can
take part. With options of sharing its CUDA kernels are managed, so that it can share a GPU with others. Whatever goes
wrong with that, the command runs and its exit status is sxrun's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from signal import SIG_BLOCK, Signals, pthread_sigmask

from explsched.batch_script import DIES, would_die
from explsched.checkpoint import DEFAULT_SIGNAL, signal_name
from explsched.errors import warn
from explsched.job_options.command_line import add, add_version, exported, variable_lines
from explsched.job_options.table import (
    CHECKPOINT,
    ELASTIC,
    FOLLOW,
    FOLLOWING,
    MEASURE_STAGES,
    METRIC,
    MPS,
    SHARING,
    STEP_KEY,
    VALUE_KEY,
)
from explsched.parameters import of_command
from explsched.process_signals import signal_number
from explsched.progress import DEFAULT_SPOOL, UNDER_SXRUN, event, tell, tell_start
from wrappers import own_job, share_options, sources, sub_batches
from wrappers.completed import digest_of, was_complete
from wrappers.elastic_size import present_size
from wrappers.inherited import with_marked
from wrappers.relay import SignalRelay
from wrappers.share_options import ShareRequest
from wrappers.sources import Source

_COLUMN = 27
_UNBUFFERED = "PYTHONUNBUFFERED"
_EPILOG = rf"""
exit status: the command's; 128 + n if signal n ended it, 126 or 127 if it cannot be started, 2 for wrong usage.

environment:
  {CHECKPOINT.variable:<{_COLUMN}}  signal that asks for a checkpoint (default: {DEFAULT_SIGNAL}); set for the command
  {ELASTIC.variable:<{_COLUMN}}  set: Slurm's variables for the job's size are corrected to its present one
  {METRIC.variable:<{_COLUMN}}  the metric that is read (default: loss)
{variable_lines((*FOLLOWING, *SHARING), _COLUMN)}
  EXPLSCHED_STAGES_DIRECTORY   directory for measured stages; set for the command
  EXPLSCHED_SUB_BATCHES        sub-batches per batch that fit the job's part of a GPU; set for the command
  EXPLSCHED_SPOOL              directory of the progress files (default: /var/spool/explsched/progress)
  EXPLSCHED_PROGRESS_FILE      file to report to instead, also outside of jobs
  EXPLSCHED_INTERCEPT          off: kernels are not managed, memory is not limited; {MPS.flag} still starts MPS
  EXPLSCHED_INTERCEPT_LIBRARY  the interposer, if it is not where it was installed
  EXPLSCHED_KM                 the kernel manager, if it is not where it was installed
  EXPLSCHED_KM_SOCKET          socket of the kernel manager; set for the command
  EXPLSCHED_NODE_MPS           directory of the MPS that jobs share (default: /run/explsched-mps)
  EXPLSCHED_RENDEZVOUS_PORT    port at which the tasks of templates' jobs meet; chosen by the job
  {_UNBUFFERED:<{_COLUMN}}  set for the command by --log-regex, unless it is set (also empty): lines come at once
  {UNDER_SXRUN:<{_COLUMN}}  the job whose script an sxrun judges, so that its trainings need not; set for the command
  EXPLSCHED_SET_BY_SXRUN       what was set for the command alone: an sxrun inside and jobs that it submits drop it

examples:
  sxrun --follow logs/ --total-steps 3000 --value-key eval/loss -- python train.py
  sxrun --total-steps 3000 --log-regex 'step (?P<step>\d+) .*loss (?P<loss>\S+)' -- python train.py
  sxrun -- srun bash -c 'trap "" USR1; exec sxrun --signals-only -- torchrun train.py'
"""


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the command's exit status (128 + n when signal n ended it)."""
    parser = options_parser()
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command given")
    # Until the relay holds signals back: Slurm may take its time to answer.
    before = pthread_sigmask(SIG_BLOCK, (Signals.SIGUSR1, Signals.SIGUSR2))
    environment = {**os.environ, **own_job.options(os.environ)}
    if options.signals_only:
        if any(getattr(options, option.yaml_key) for option in (STEP_KEY, VALUE_KEY, MEASURE_STAGES, *SHARING)):
            parser.error("--signals-only leaves no use for other options")
        return _pass_signals_on(command, environment, before)
    try:
        following, warnings = sources.options_of(options, environment)
        source = sources.chosen(options, following, environment)
        share, more = share_options.chosen(options, environment)
    except ValueError as error:
        parser.error(str(error))
    for warning in (*warnings, *more):
        warn("sxrun", warning)
    environment |= present_size(environment)
    environment |= sub_batches.hint(environment)
    digest = digest_of(command)
    if was_complete(digest, environment):
        warn("sxrun", "the run before this one had done its work when it was requeued: nothing is left to do")
        tell_start(digest)
        event("end", status=0)
        return 0
    allows_preemption = CHECKPOINT.variable in environment
    environment, checkpoint = _of_command(environment)
    environment[UNDER_SXRUN] = environment.get("SLURM_JOB_ID", "")
    script_dies = would_die(checkpoint.name, environment) if allows_preemption else None
    if script_dies:
        warn("sxrun", DIES.format(checkpoint.name))
    with (
        SignalRelay(checkpoint, before) as relay,
        _prepared(share, environment, relay) as prepared,
        _measured(following, prepared) as measured,
    ):
        # The event tells the daemon that signals may come: not before they are held back.
        tell_start(digest, script_dies=script_dies)
        return _run(relay, command, measured, source)


def _run(relay: SignalRelay, command: list[str], environment: dict[str, str], source: Source | None) -> int:
    tell(of_command(command))
    stdout = subprocess.PIPE if source and not source.tail else None
    try:
        child = relay.start(command, stdout, _unbuffered(environment, is_read=stdout is not None))
    except OSError as error:
        status = _not_started(command, error)
        event("end", status=status)
        return status
    follower = source.follow(child) if source else None
    status = relay.wait(child)
    if follower:
        follower.finish()
    if source and status == 0:
        source.tell_silence()
    if status >= 0:  # a run that a signal has ended, as a requeue does, is not the end of the job
        event("end", status=None if relay.was_told_to_end else status)
    return status if status >= 0 else 128 - status


def _pass_signals_on(command: list[str], environment: Mapping[str, str], before: set[int]) -> int:
    """Run a command of which another `sxrun` tells the scheduler, such as a launcher in the tasks of a step."""
    environment, checkpoint = _of_command(environment)
    with SignalRelay(checkpoint, before) as relay:
        try:
            status = relay.wait(relay.start(command, environment=environment))
        except OSError as error:
            return _not_started(command, error)
        return status if status >= 0 else 128 - status


def _not_started(command: list[str], error: OSError) -> int:
    """Say that a command cannot be started; returns the exit status for that."""
    warn("sxrun", f"{command[0]}: {error.strerror}")
    return 127 if isinstance(error, FileNotFoundError) else 126


def _unbuffered(environment: dict[str, str], *, is_read: bool) -> dict[str, str]:
    """The environment in which Python writes at once what it prints, if that is read here, or by an sxrun around.

    Into a pipe it writes 8 KiB at a time, which may be hours of a log: no progress would be known, and none of a run
    that is killed. What the user has set stays, be it empty.
    """
    if _UNBUFFERED in environment or not (is_read or _UNBUFFERED in os.environ):
        return environment
    return with_marked(environment, {_UNBUFFERED: os.environ.get(_UNBUFFERED, "1")})


def _prepared(
    share: ShareRequest, environment: dict[str, str], relay: SignalRelay
) -> AbstractContextManager[dict[str, str]]:
    """The command's environment, and around it what sharing a GPU takes."""
    if not share.is_any:
        return nullcontext(environment)
    from wrappers.sharing import prepared  # most commands do not share, and should not pay for its imports

    return prepared(share, environment, relay.as_daemon)


def _measured(following: Mapping[str, str], environment: dict[str, str]) -> AbstractContextManager[dict[str, str]]:
    """The command's environment, and around it what measuring its stages takes."""
    if following.get(MEASURE_STAGES.name, "0") != "1":
        return nullcontext(environment)
    from wrappers.stages import measured

    return measured(environment)


def options_parser() -> argparse.ArgumentParser:
    """The command's options; its man page and completion are made from them, too."""
    parser = argparse.ArgumentParser(
        prog="sxrun",
        description="Run COMMAND inside a Slurm job; signals are passed on, progress is reported.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--log-regex",
        metavar="REGEX",
        help="read progress from standard output: a group named step and one per metric, such as (?P<loss>...)",
    )
    source.add_argument(
        "--metrics-jsonl", type=Path, metavar="FILE", help=f"as {FOLLOW.flag}, for JSON lines in a file of any name"
    )
    add(source, FOLLOW)
    source.add_argument(
        "--signals-only",
        action="store_true",
        help="only pass signals on, as to launchers such as torchrun in the tasks of a step",
    )
    for option in (STEP_KEY, VALUE_KEY, MEASURE_STAGES):
        add(parser, option)
    parser.add_argument(
        "--total-steps", type=_steps, metavar="N", help="total number of steps, for progress that is read"
    )
    share_options.add_options(parser)
    add_version(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    return parser


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, accepted are whole numbers from 1 on")
    return int(text)


def _of_command(environment: Mapping[str, str]) -> tuple[dict[str, str], Signals]:
    """The environment with what holds for the command's job, and the checkpoint signal.

    Not the progress file's name: a job that the command submits would inherit it and write into this job's file. Nor
    what is followed or measured here: an sxrun inside would report all of it once more.
    """
    name = signal_name(environment)
    try:
        number = signal_number(name)
    except ValueError as error:
        warn("sxrun", f"{CHECKPOINT.variable} is ignored: {error}")
        name, number = DEFAULT_SIGNAL, signal_number(DEFAULT_SIGNAL)
    ours = {option.variable for option in FOLLOWING}
    kept = {variable: value for variable, value in environment.items() if variable not in ours}
    return {"EXPLSCHED_SPOOL": DEFAULT_SPOOL, **kept, **exported({CHECKPOINT.name: name}, [CHECKPOINT])}, number


if __name__ == "__main__":
    sys.exit(main())
