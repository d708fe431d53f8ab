"""sxbatch's own options: their words and types, and where their values come from.

The command line counts first, then the environment, then `#SXBATCH` lines of the script.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from explsched.checkpoint import signal_number
from wrappers import directives, template
from wrappers.elastic import sizes
from wrappers.sbatch_options import CommandLine, split
from wrappers.submission import nearest_own

_EPILOG = """\
Other options are sbatch's own. '#SXBATCH --sweep=...' lines of the script come last, after the environment. With
--template the words after '--' are the command to run.

exit status: sbatch's, or 2 for an error of sxbatch.

environment:
  SXBATCH_SWEEP       default of --sweep
  SXBATCH_METRIC      default of --metric
  SXBATCH_DIRECTION   default of --direction
  SXBATCH_CHECKPOINT  default of --checkpoint
  SXBATCH_ELASTIC     default of --elastic
  SXBATCH_STAGES      default of --stages
  SXBATCH_TEMPLATE    default of --template
  SXBATCH_STOP        1: as --stop

examples:
  sxbatch --sweep digits --checkpoint USR1 --gres=gpu:1 train.sh
  sxbatch --sweep digits --template sweep --param-grid lr=0.1,0.01 --param gpus=1 -- python train.py
"""
VALUES = ("sweep", "metric", "direction", "checkpoint", "elastic", "stages")
"""Options that go into the job's comment, for the daemon."""

# True: takes a value
_OWN = dict.fromkeys((*VALUES, "template", "param", "param-grid", "array-limit"), True) | dict.fromkeys(
    ("stop", "dry-run", "json", "help"), False
)


class _Parser(argparse.ArgumentParser):
    """Raises ValueError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read(words: Sequence[str]) -> tuple[argparse.Namespace, CommandLine]:
    """Our options, from the command line, the environment and the script; and the rest in its order."""
    line = split(words, _OWN)
    for name in line.unknown:
        meant = nearest_own(name, _OWN)
        if meant:
            raise ValueError(f"unknown option --{name} (did you mean --{meant}?)")
    parser = options_parser()
    options = parser.parse_args(line.own)
    _apply_environment(parser, options)
    script = directives.read_script(Path(line.rest[0])) if line.rest and not options.template else None
    if script is not None:
        _apply_script_lines(parser, options, script)
    return options, line


def options_parser() -> argparse.ArgumentParser:
    """The command's options; its man page and completion are made from them, too."""
    parser = _Parser(
        prog="sxbatch",
        usage="sxbatch [options] [sbatch options] script.sh [arguments]",
        description="Submit a job to Slurm and tell explsched about it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--sweep", help="jobs of a sweep lend each other what is known about their learning curves")
    parser.add_argument("--metric", help="the metric that tells progress (default: loss)")
    parser.add_argument("--direction", choices=("min", "max"), help="whether the metric falls or rises (default: min)")
    parser.add_argument(
        "--checkpoint",
        type=_signal,
        metavar="SIGNAL",
        help="consent to preemption: SIGNAL asks the job to save, then it is requeued",
    )
    parser.add_argument(
        "--elastic",
        type=sizes,
        metavar="MIN-MAX[/N]",
        help="the job can run with MIN to MAX GPUs on one node, or with N on each of several (see --gpus-per-node)",
    )
    parser.add_argument(
        "--stages",
        type=_stages,
        metavar="ITERATION/IO/GPU/NET",
        help="milliseconds of an iteration that runs alone and of its stages, to find partners on a GPU: 110/60/45/5",
    )
    parser.add_argument("--stop", action="store_true", default=None, help="consent to being stopped when hopeless")
    parser.add_argument("--template", metavar="NAME", help=f"make the script: {', '.join(template.names())}, or a file")
    parser.add_argument("--param", action="append", default=[], metavar="K=V", help="parameter of the template")
    parser.add_argument("--param-grid", action="append", default=[], metavar="K=V,V", help="values a sweep tries")
    parser.add_argument("--array-limit", type=_count, metavar="N", help="at most N tasks of the sweep run at a time")
    parser.add_argument("--dry-run", action="store_true", help="show script and command, submit nothing")
    parser.add_argument("--json", action="store_true", help="print the job's id, or the dry run, as JSON")
    return parser


def _signal(text: str) -> str:
    try:
        return signal_number(text).name.removeprefix("SIG") if text else ""
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _stages(text: str) -> str:
    parts = text.split("/")
    try:
        right = len(parts) == 4 and float(parts[0]) > 0 and all(0 <= float(part) < float("inf") for part in parts)
    except ValueError:
        right = False
    if text and not right:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form ITERATION/IO/GPU/NET, in milliseconds")
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _apply_script_lines(parser: argparse.ArgumentParser, options: argparse.Namespace, script: str) -> None:
    """`#SXBATCH` lines of the script fill in what is still open. Of several lines the last counts, as for sbatch."""
    for number, words in reversed(directives.words(script, "#SXBATCH")):
        line = split(words, {name: _OWN[name] for name in (*VALUES, "stop")})
        if line.options or line.rest:
            strange = line.options[0].words[0] if line.options else line.rest[0]
            accepted = ", ".join(f"--{name}" for name in (*VALUES, "stop"))
            raise ValueError(f"line {number} of the script: #SXBATCH {strange!r} (accepted: {accepted})")
        try:
            _fill(options, parser.parse_args(line.own))
        except ValueError as error:
            raise ValueError(f"line {number} of the script: #SXBATCH: {error}") from error


def _apply_environment(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    for name in (*VALUES, "template"):
        variable = f"SXBATCH_{name.upper()}"
        value = os.environ.get(variable)
        if value:
            try:
                _fill(options, parser.parse_args([f"--{name}={value}"]))
            except ValueError as error:
                raise ValueError(f"{variable}: {error}") from error
    if os.environ.get("SXBATCH_STOP") == "1":
        options.stop = True


def _fill(options: argparse.Namespace, found: argparse.Namespace) -> None:
    for key in (*VALUES, "stop", "template"):
        if getattr(options, key) is None and getattr(found, key) is not None:
            setattr(options, key, getattr(found, key))
