"""`sxrun`: runs a command inside a job, passes signals on to it and tells the scheduler about the run.

It reports `--key=value` and `--key value` of the command as the training's hyper-parameters. With `--log-regex` or
`--follow` it also reads progress from what the command prints or writes, so that a training that only logs can
take part. With options of sharing its CUDA kernels are managed, so that it can share a GPU with others. Whatever goes
wrong with that, the command runs and its exit status is sxrun's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from signal import SIG_BLOCK, Signals, pthread_sigmask

from explsched.checkpoint import DEFAULT_SIGNAL, signal_name, signal_number
from explsched.errors import warn
from explsched.job_options.command_line import add, add_version, exported, read, variable_lines
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
from explsched.progress import DEFAULT_SPOOL, event, tell, tell_start, told
from wrappers import own_job
from wrappers.event_files import EventReporter, EventTail
from wrappers.follow import POLL_S, LogTail, Reporter, default_metric, json_reader, log_reader, row_reader
from wrappers.inherited import with_marked
from wrappers.output import Follower, OutputReader
from wrappers.relay import SignalRelay
from wrappers.share_options import ShareRequest, add_options, chosen

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
  EXPLSCHED_SET_BY_SXRUN       what was set for the command alone: an sxrun inside and jobs that it submits drop it

examples:
  sxrun --follow logs/ --value-key eval/loss -- python train.py
  sxrun --log-regex 'step (?P<step>\d+) .*loss (?P<loss>\S+)' -- python train.py
  sxrun -- srun bash -c 'trap "" USR1; exec sxrun --signals-only -- torchrun train.py'
"""
_TASK_COUNTS = ("SLURM_NTASKS", "SLURM_NPROCS")
_ROWS = (".csv", ".tsv")
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_EVENTS = "tfevents"
_PASS_S = 60.0  # longer than from the daemon's decision to the requeue
_SUB_BATCHES = "EXPLSCHED_SUB_BATCHES"


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the command's exit status (128 + n when signal n ended it)."""
    parser = options_parser()
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command given")
    # Until the relay holds signals back: Slurm may take its time to answer.
    before = pthread_sigmask(SIG_BLOCK, (Signals.SIGUSR1, Signals.SIGUSR2))
    os.environ.update(own_job.options(os.environ))
    if options.signals_only:
        if any(getattr(options, option.yaml_key) for option in (STEP_KEY, VALUE_KEY, MEASURE_STAGES, *SHARING)):
            parser.error("--signals-only leaves no use for other options")
        return _pass_signals_on(command, before)
    reporter = tail = None
    try:
        following, warnings = _following(options)
        if options.log_regex:
            reporter = Reporter(log_reader(options.log_regex), "sxrun", options.total_steps)
        elif options.metrics_jsonl:
            reader = json_reader(following.get(STEP_KEY.name, "step"), following.get(VALUE_KEY.name))
            reporter, tail = Reporter(reader, "sxrun", options.total_steps), LogTail(options.metrics_jsonl)
        elif FOLLOW.name in following:
            reporter, tail = _followed(options, following)
        if os.environ.get("SLURM_PROCID", "0") != "0":
            reporter = tail = None  # of a step's tasks the first one reports: others see its file, or have other losses
        share, more = chosen(options, os.environ)
        warnings += more
    except ValueError as error:
        parser.error(str(error))
    for warning in warnings:
        warn("sxrun", warning)
    os.environ.update(present_size(os.environ))
    os.environ.update(_accumulation(os.environ))
    digest = _digest(command)
    if _was_complete(digest, os.environ):
        warn("sxrun", "the run before this one had done its work when it was requeued: nothing is left to do")
        tell_start(digest)
        event("end", status=0)
        return 0
    with (
        SignalRelay(_export(), before) as relay,
        _prepared(share, relay) as prepared,
        _measured(following, prepared) as environment,
    ):
        return _run(relay, command, digest, environment, reporter, tail)


def _run(
    relay: SignalRelay,
    command: list[str],
    digest: str,
    environment: dict[str, str],
    reporter: Reporter | None,
    tail: LogTail | None,
) -> int:
    # The event tells the daemon that signals may come: not before they are held back.
    tell_start(digest)
    tell(of_command(command))
    stdout = subprocess.PIPE if reporter and not tail else None
    try:
        child = relay.start(command, stdout, _unbuffered(environment, is_read=stdout is not None))
    except OSError as error:
        status = _not_started(command, error)
        event("end", status=status)
        return status
    follower = _follower(child, reporter, tail) if reporter else None
    status = relay.wait(child)
    if follower:
        follower.finish()
    if reporter and status == 0 and not reporter.has_reported:
        reporter.warn(
            f"no progress was found in {tail or 'what the command printed on standard output'}: explsched gets none"
        )
    if status >= 0:  # a run that a signal has ended, as a requeue does, is not the end of the job
        event("end", status=None if relay.was_told_to_end else status)
    return status if status >= 0 else 128 - status


def _pass_signals_on(command: list[str], before: set[int]) -> int:
    """Run a command of which another `sxrun` tells the scheduler, such as a launcher in the tasks of a step."""
    with SignalRelay(_export(), before) as relay:
        try:
            status = relay.wait(relay.start(command))
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


def _follower(child: subprocess.Popen[bytes], reporter: Reporter, tail: LogTail | None) -> Follower:
    """Reads progress from files, or from what the command prints."""
    if tail is None:
        output = OutputReader(child, reporter)
        return Follower(reporter, output.follow, output.end)
    ended = threading.Event()
    return Follower(reporter, partial(tail.follow, reporter, partial(ended.wait, POLL_S)), ended.set)


def _accumulation(environment: Mapping[str, str]) -> dict[str, str]:
    """The hint of a job that has a part of a GPU: in how many sub-batches its batch fits. What is set stays."""
    held = environment.get("SLURM_SHARDS_ON_NODE", "")
    node = environment.get("SLURMD_NODENAME", "")
    if not held.isdecimal() or not int(held) or not node or _SUB_BATCHES in environment:
        return {}
    gres = re.search(r"^\s*Gres=(\S+)", own_job.told("how many shards a GPU has", "node", node), re.MULTILINE)
    counts = re.findall(r"(gpu|shard):(?:[^:,()]+:)?(\d+)", gres[1]) if gres else []
    gpus, shards = (sum(int(count) for kind, count in counts if kind == wanted) for wanted in ("gpu", "shard"))
    return {_SUB_BATCHES: str(sub_batches(int(held), shards // gpus))} if gpus and shards else {}


def sub_batches(held: int, whole: int) -> int:
    """In how many parts a batch that needs a whole GPU's memory goes through `held` of its `whole` shards.

    SJF-BSBF (arXiv 2407.13088) tries sub-batches of B, B/2, B/4, ... and accumulates their gradients, which leaves
    convergence as it is; each more of them costs another start of all kernels, so the largest that fits is the best.
    """
    parts = 1
    while parts * held < whole:
        parts *= 2
    return parts


def _digest(command: list[str]) -> str:
    """Tells the commands of a job apart. Short, so that a password among the words cannot be found by trying."""
    try:
        where = bytes(Path.cwd())
    except OSError:  # it has been removed, or is closed to the user
        where = b""
    return hashlib.sha256(b"\0".join((where, *map(os.fsencode, command)))).hexdigest()[:8]


def _was_complete(digest: str, environment: Mapping[str, str]) -> bool:
    """Whether explsched has requeued the job in the moment in which its work was done.

    A training may end after the daemon's last look at it and before Slurm has noticed. Run again it would do once more
    what came after its last checkpoint. Who requeues a job by hand wants it to run again: Slurm's record, which owners
    cannot write, tells the two apart.
    """
    run = environment.get("SLURM_RESTART_COUNT", "0")
    is_alone = environment.get("SLURM_STEP_NUM_TASKS", "1") == "1"  # tasks of a step go on together or not at all
    if not run.isdecimal() or int(run) == 0 or not is_alone:
        return False
    ended_s = done_at(told().splitlines(), int(run) - 1, digest)
    if ended_s is None:
        return False
    return own_job.requeued_s(environment.get("SLURM_JOB_ID", ""), int(run) - 1) >= ended_s - _PASS_S


def done_at(lines: Iterable[bytes], run: int, command: str) -> float | None:
    """When a run had done its work, this command too, by the lines of the job's progress file; None if not certain.

    All that it began must have ended well by itself, at the last step, and be told apart. The next run, which asks at
    each command that it begins, must have reported no value yet, and begun only what was in the run, each once.
    """
    began: list[str] = []
    again = [command]
    ended, last, total, end_s = 0, -1, None, 0.0
    for text in lines:
        try:
            line = json.loads(text)
            of_run = line.get("restart", 0)
            if of_run > run and "value" in line:
                return None
            if of_run >= run and line.get("event") == "start":
                (began if of_run == run else again).append(str(line.get("command")))
            if of_run == run:
                if line.get("event") == "end" and line.get("status") == 0:
                    ended, end_s = ended + 1, float(line["time_s"])
                if "value" in line:
                    last, total = max(last, line["step"]), line.get("total_steps", total)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            continue  # a line that was cut, or that somebody else wrote
    is_known = len(set(began)) == len(began) and len(set(again)) == len(again) and set(began) >= set(again)
    return end_s if is_known and len(began) == ended and total is not None and last >= total - 1 else None


def _prepared(share: ShareRequest, relay: SignalRelay) -> AbstractContextManager[dict[str, str]]:
    """The command's environment, and around it what sharing a GPU takes."""
    if not share.is_any:
        return nullcontext(dict(os.environ))
    from wrappers.sharing import prepared  # most commands do not share, and should not pay for its imports

    return prepared(share, os.environ, relay.as_daemon)


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
    add_options(parser)
    add_version(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    return parser


def _following(options: argparse.Namespace) -> tuple[dict[str, str], list[str]]:
    """What is followed and how, by the options' names, and warnings about variables that cannot be used."""
    found = read(os.environ, FOLLOWING)
    given = {option.name: value for option in FOLLOWING if (value := getattr(options, option.yaml_key))}
    return found.values | given, list(found.warnings)


def _followed(
    options: argparse.Namespace, following: Mapping[str, str]
) -> tuple[Reporter, LogTail] | tuple[None, None]:
    """As `followed`; but where variables alone name what cannot be followed, the command runs all the same."""
    try:
        return followed(following, "sxrun", options.total_steps)
    except ValueError as error:
        if options.follow or options.step_key:
            raise
        warn("sxrun", f"{FOLLOW.variable} is ignored: {error}")
        return None, None


def followed(values: Mapping[str, str], program: str, total_steps: int | None) -> tuple[Reporter, LogTail]:
    """What reads the file that `values` name (by the options' names), and what it reports to.

    Raises ValueError for a name that tells no kind of file, and for a step's name where there is none.
    """
    path = Path(values[FOLLOW.name])
    step, value = values.get(STEP_KEY.name), values.get(VALUE_KEY.name)
    is_directory = os.path.isdir(path) or values[FOLLOW.name].endswith("/")  # noqa: PTH112  Path.is_dir may raise
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
        f"{FOLLOW.flag} {path}: unknown kind of file; accepted: {accepted}, "
        f"a name with {_EVENTS}, or TensorBoard's directory"
    )


def present_size(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an elastic job's batch script that must be set anew, so that its steps have its present size.

    Nothing for other jobs, and inside of a step, which Slurm has told its own size. --ntasks-per-node says how many
    tasks the job has with its present nodes; without it the number of tasks stays. Slurm itself starts a job whose size
    was changed while it waited with SLURM_JOB_NUM_NODES, SLURM_GPUS_ON_NODE and CUDA_VISIBLE_DEVICES as they are now,
    but with what sbatch had put into the environment at submission: srun would start steps of the old size.
    """
    if not environment.get(ELASTIC.variable) or "SLURM_STEP_ID" in environment:
        return {}
    fresh: dict[str, str] = {}
    asked, held = environment.get("SLURM_GPUS_PER_NODE", ""), environment.get("SLURM_GPUS_ON_NODE", "")
    if asked and held.isdecimal():
        kind, colon, _ = asked.rpartition(":")
        fresh["SLURM_GPUS_PER_NODE"] = f"{kind}{colon}{held}"
    per_node, nodes = environment.get("SLURM_NTASKS_PER_NODE", ""), environment.get("SLURM_JOB_NUM_NODES", "")
    if per_node.isdecimal() and nodes.isdecimal():
        tasks = str(int(per_node) * int(nodes))
        fresh |= {name: tasks for name in _TASK_COUNTS if name in environment}
    return {name: value for name, value in fresh.items() if environment[name] != value}


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, accepted are whole numbers from 1 on")
    return int(text)


def _export() -> Signals:
    """Tell the command what holds for its job; returns the checkpoint signal.

    Not the progress file's name: a job that the command submits would inherit it and write into this job's file. Nor
    what is followed or measured here: an sxrun inside would report all of it once more.
    """
    os.environ.setdefault("EXPLSCHED_SPOOL", DEFAULT_SPOOL)
    for option in FOLLOWING:
        os.environ.pop(option.variable, None)
    name = signal_name(os.environ)
    try:
        number = signal_number(name)
    except ValueError as error:
        warn("sxrun", f"{CHECKPOINT.variable} is ignored: {error}")
        name, number = DEFAULT_SIGNAL, signal_number(DEFAULT_SIGNAL)
    os.environ.update(exported({CHECKPOINT.name: name}, [CHECKPOINT]))
    return number


if __name__ == "__main__":
    sys.exit(main())
