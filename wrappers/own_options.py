"""sxbatch's own options: their words and types, and where their values come from.

The command line counts first, then the environment, then `#SXBATCH` lines of the script.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from explsched.job_options.command_line import add, read_for_submission, variable_lines
from explsched.job_options.table import SCHEDULED
from wrappers import template
from wrappers.sbatch_options import CommandLine, directives, read_script, split

_TEMPLATE_VARIABLE = "SXBATCH_TEMPLATE"
_EPILOG = f"""\
Other options are sbatch's own. Lines of the script such as '#SXBATCH {SCHEDULED[0].flag}=NAME' come last, after the
environment. Inside a job the variables are that job's own: permissions that it gave are not taken from them. With
--template the words after '--' are the command to run.

exit status: sbatch's, or 2 for an error of sxbatch.

environment:
{variable_lines(SCHEDULED, 21)}
  {_TEMPLATE_VARIABLE:<21}  default of --template

examples:
  sxbatch --sweep digits --checkpoint USR1 --gres=gpu:1 train.sh
  sxbatch --sweep digits --template sweep --param-grid lr=0.1,0.01 --param gpus=1 -- python train.py
"""
_JOB = {option.name: bool(option.metavar) for option in SCHEDULED}
_FORMER = {flag.removeprefix("--"): option for option in SCHEDULED for flag in option.former.flags}
_FORMER_TAKES = {name: bool(option.metavar) for name, option in _FORMER.items()}

# True: takes a value
_OWN = (
    _JOB
    | dict.fromkeys(("template", "param", "param-grid", "array-limit"), True)
    | dict.fromkeys(("dry-run", "json", "help"), False)
)


class _Parser(argparse.ArgumentParser):
    """Raises ValueError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read(words: Sequence[str]) -> tuple[argparse.Namespace, CommandLine]:
    """Our options, from the command line, the environment and the script; and the rest in its order."""
    line = split(words, _OWN | _FORMER_TAKES)
    for name in line.unknown:
        meant = _nearest_own(name, _OWN)
        if meant:
            raise ValueError(f"unknown option --{name} (did you mean --{meant}?)")
    parser = options_parser()
    options = parser.parse_args(_present(line.own, ""))
    _apply_environment(options)
    script = read_script(Path(line.rest[0])) if line.rest and not options.template else None
    if script is not None:
        _apply_script_lines(parser, options, script)
    return options, line


def job_values(options: argparse.Namespace) -> dict[str, str]:
    """The values of the job options by name, in canonical form; empty for one that was given without a value."""
    found = {option.name: getattr(options, option.yaml_key) for option in SCHEDULED}
    return {name: value for name, value in found.items() if value is not None}


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
    for option in SCHEDULED:
        add(parser, option)
    parser.add_argument("--template", metavar="NAME", help=f"make the script: {', '.join(template.names())}, or a file")
    parser.add_argument("--param", action="append", default=[], metavar="K=V", help="parameter of the template")
    parser.add_argument("--param-grid", action="append", default=[], metavar="K=V,V", help="values a sweep tries")
    parser.add_argument("--array-limit", type=_count, metavar="N", help="at most N tasks of the sweep run at a time")
    parser.add_argument("--dry-run", action="store_true", help="show script and command, submit nothing")
    parser.add_argument("--json", action="store_true", help="print the job's id, or the dry run, as JSON")
    return parser


def _nearest_own(name: str, own: Iterable[str]) -> str | None:
    """The option of ours that an unknown long option was meant to be; None if the site's sbatch has it."""
    meant = difflib.get_close_matches(name, own, n=1, cutoff=0.75) or [o for o in own if name and o.startswith(name)]
    if not meant:
        return None
    try:  # SPANK plugins add options, which only sbatch itself can tell
        done = subprocess.run(["sbatch", "--help"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return meant[0]
    return None if re.search(rf"--{re.escape(name)}\b(?!-)", done.stdout) else meant[0]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _present(words: Sequence[str], where: str) -> list[str]:
    """The words with options of a former release in their present spelling, of which the user is told."""
    found = []
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        option = _FORMER.get(name)
        if option is not None:
            _warn(f"{where}--{name} is now {option.flag}; the former name will not be read by the next release")
        found.append(word if option is None else f"{option.flag}{equals}{value}")
    return found


def _apply_script_lines(parser: argparse.ArgumentParser, options: argparse.Namespace, script: str) -> None:
    """`#SXBATCH` lines of the script fill in what is still open. Of several lines the last counts, as for sbatch."""
    for number, words in reversed(directives(script, "#SXBATCH")):
        line = split(words, _JOB | _FORMER_TAKES)
        if line.options or line.rest:
            strange = line.options[0].words[0] if line.options else line.rest[0]
            accepted = ", ".join(f"--{name}" for name in _JOB)
            raise ValueError(f"line {number} of the script: #SXBATCH {strange!r} (accepted: {accepted})")
        try:
            found = parser.parse_args(_present(line.own, f"line {number} of the script: #SXBATCH "))
            _fill(options, job_values(found))
        except ValueError as error:
            raise ValueError(f"line {number} of the script: #SXBATCH: {error}") from error


def _apply_environment(options: argparse.Namespace) -> None:
    found = read_for_submission(os.environ, SCHEDULED)
    for warning in found.warnings:
        _warn(warning)
    _fill(options, found.values)
    options.template = options.template or os.environ.get(_TEMPLATE_VARIABLE)


def _fill(options: argparse.Namespace, values: dict[str, str]) -> None:
    for option in SCHEDULED:
        if getattr(options, option.yaml_key) is None:
            setattr(options, option.yaml_key, values.get(option.name))


def _warn(text: str) -> None:
    sys.stderr.write(f"sxbatch: {text}\n")
