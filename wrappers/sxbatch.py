"""`sxbatch`: sbatch with explsched's options. Every option that is not ours goes to sbatch untouched.

The command line counts first, then the environment, then `#SXBATCH` lines of the script.

sxbatch --sweep digits --checkpoint USR1 --early-stop --gres=gpu:1 train.sh
sxbatch --sweep digits --template sweep --param-grid lr=0.1,0.01 --param gpus=1 -- python train.py
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TextIO

from explsched.checkpoint import DEFAULT_SIGNAL
from explsched.job_options import comment
from explsched.job_options.command_line import add, add_version, exported, read_for_submission, variable_lines
from explsched.job_options.table import CHECKPOINT, PARAMS, SCHEDULED, SWEEP
from explsched.parameters import is_plain, listed, of_command
from wrappers import array_size, template
from wrappers.inherited import for_submission
from wrappers.sbatch_options import CommandLine, SbatchOption, directives, read_script, script_value, split

_TEMPLATE_VARIABLE = "SXBATCH_TEMPLATE"
_EPILOG = f"""\
Other options are passed to sbatch. The command line overrides the environment, which overrides lines of the script
such as '#SXBATCH {SCHEDULED[0].flag}=NAME'. Jobs submitted from within a job do not inherit its permissions
({", ".join(option.flag for option in SCHEDULED if option.is_consent)}). With --template, the command follows '--'.

exit status: sbatch's, or 2 for an error of sxbatch.

environment:
{variable_lines(SCHEDULED, 21)}
  {_TEMPLATE_VARIABLE:<21}  default of --template

examples:
  sxbatch --sweep digits --checkpoint USR1 --gres=gpu:1 train.sh
  sxbatch --sweep digits --template sweep --param-grid lr=0.1,0.01 --param gpus=1 -- python train.py
"""
_JOB = {option.name: bool(option.metavar) for option in SCHEDULED}

# True: takes a value
_OWN = (
    _JOB
    | dict.fromkeys(("template", "param", "param-grid", "array-limit"), True)
    | dict.fromkeys(("dry-run", "json", "version", "help"), False)
)


_LONGEST_COMMENT = 1024
_ASSUMED = (CHECKPOINT.name, DEFAULT_SIGNAL)
"""What jobs that are told nothing go by."""

_REQUEUES = ("requeue", "no-requeue")
_WITHOUT_SCRIPT = frozenset({"help", "usage", "version", "wrap"})
"""Options of sbatch with which it does not read a script from standard input."""


class _Parser(argparse.ArgumentParser):
    """Raises ValueError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read(words: Sequence[str], environment: Mapping[str, str]) -> tuple[argparse.Namespace, CommandLine, str | None]:
    """Our options, from the command line, the environment and the script; the rest in its order; the script's text."""
    line = split(words, _OWN)
    for name in line.unknown:
        meant = _nearest_own(name, _OWN)
        if meant:
            raise ValueError(f"unknown option --{name} (did you mean --{meant}?)")
    parser = options_parser()
    options = parser.parse_args(line.own)
    _apply_environment(options, environment)
    script = None if options.template else _script(line)
    if script is not None:
        _apply_script_lines(parser, options, script)
    return options, line, script


def job_values(options: argparse.Namespace) -> dict[str, str]:
    """The values of the job options by name, in canonical form; empty for one that was given without a value."""
    found = {option.name: getattr(options, option.yaml_key) for option in SCHEDULED}
    return {name: value for name, value in found.items() if value is not None}


def options_parser() -> argparse.ArgumentParser:
    """The command's options; its man page and completion are made from them, too."""
    parser = _Parser(
        prog="sxbatch",
        usage="sxbatch [options] [sbatch options] script.sh [arguments]",
        description="Submit a job to Slurm with explsched options.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for option in SCHEDULED:
        add(parser, option)
    parser.add_argument(
        "--template", metavar="NAME", help=f"generate the script: {', '.join(template.names())}, or a file"
    )
    parser.add_argument("--param", action="append", default=[], metavar="K=V", help="parameter of the template")
    parser.add_argument("--param-grid", action="append", default=[], metavar="K=V,V", help="values of a grid sweep")
    parser.add_argument(
        "--array-limit", type=_count, metavar="N", help="maximum number of simultaneously running tasks"
    )
    parser.add_argument("--dry-run", action="store_true", help="show script and command, submit nothing")
    parser.add_argument("--json", action="store_true", help="print the job's id, or the dry run, as JSON")
    add_version(parser)
    return parser


def _script(line: CommandLine) -> str | None:
    """The text of the script, as far as it can be known: of a file, or what comes from a pipe or a here-document."""
    if line.rest:
        directories = [option.value for option in line.first if option.name == "chdir"]
        return read_script(line.rest[0], directories[-1] if directories else ".")
    if any(option.name in _WITHOUT_SCRIPT or option.words[0] == "-V" for option in line.options):
        return None
    stdin: TextIO | None = sys.stdin  # None where it was closed before the start
    if stdin is None or stdin.isatty():
        return None
    return stdin.buffer.read().decode("utf-8", "surrogateescape")


def _nearest_own(name: str, own: Iterable[str]) -> str | None:
    """The option of ours that an unknown long option was meant to be; None if the site's sbatch has it."""
    meant = difflib.get_close_matches(name, own, n=1, cutoff=0.75) or [o for o in own if name and o.startswith(name)]
    if not meant:
        return None
    try:  # SPANK plugins add options, which only sbatch itself can tell
        done = subprocess.run(["sbatch", "--help"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return meant[0]
    accepted = done.stdout.decode(errors="replace")
    return None if re.search(rf"--{re.escape(name)}\b(?!-)", accepted) else meant[0]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _apply_script_lines(parser: argparse.ArgumentParser, options: argparse.Namespace, script: str) -> None:
    """`#SXBATCH` lines of the script fill in what is still open. Of several lines the last counts, as for sbatch."""
    for number, words in reversed(directives(script, "#SXBATCH")):
        line = split(words, _JOB)
        if line.options or line.rest:
            strange = line.options[0].words[0] if line.options else line.rest[0]
            accepted = ", ".join(f"--{name}" for name in _JOB)
            raise ValueError(f"line {number} of the script: #SXBATCH {strange!r} (accepted: {accepted})")
        try:
            found = parser.parse_args(line.own)
            _fill(options, job_values(found))
        except ValueError as error:
            raise ValueError(f"line {number} of the script: #SXBATCH: {error}") from error


def _apply_environment(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    found = read_for_submission(environment, SCHEDULED)
    for warning in found.warnings:
        _warn(warning)
    _fill(options, found.values)
    options.template = options.template or environment.get(_TEMPLATE_VARIABLE)


def _fill(options: argparse.Namespace, values: dict[str, str]) -> None:
    for option in SCHEDULED:
        if getattr(options, option.yaml_key) is None:
            setattr(options, option.yaml_key, values.get(option.name))


def _warn(text: str) -> None:
    sys.stderr.write(f"sxbatch: {text}\n")


_NO_SBATCH = "sxbatch: error: sbatch is not installed or not on PATH (Debian package slurm-client)\n"
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Submission:
    """What will be handed to sbatch: its command line, and on standard input the script where that is in no file.

    `shown` is the text of the script, whoever wrote it, as far as it is known.
    """

    argv: tuple[str, ...]
    stdin: bytes | None
    environment: dict[str, str]
    shown: str | None
    is_generated: bool


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns sbatch's exit code, or 2 for an error of ours."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options, line, text = read(words, os.environ)
        submission = prepare(options, line, text)
        hidden = _hidden(job_values(options), line.first, submission.shown)
    except (template.TemplateError, ValueError) as error:
        sys.stderr.write(f"sxbatch: error: {error}\n")
        return 2
    if hidden:
        _warn(f"--export keeps {' and '.join(hidden)} from the job")
    if options.dry_run:
        show(submission, as_json=options.json)
        return 0
    return submit(submission, as_json=options.json)


def prepare(options: argparse.Namespace, line: CommandLine, text: str | None) -> Submission:
    """Turn what `read` has found into a submission. Raises ValueError or TemplateError."""
    if options.template:
        if any(option.name == "wrap" for option in line.options):
            raise ValueError("--template and --wrap both give the job's script: one is accepted")
        text = _render(options, line.rest)
    elif options.param or options.param_grid or options.array_limit:
        raise ValueError("--param, --param-grid and --array-limit need --template")
    values = job_values(options)
    first, later = line.first, line.options[len(line.first) :]
    kept, added = first, []
    if any(values.values()):  # our --comment would hide the user's, wherever it comes from
        kept = tuple(option for option in first if option.name != "comment")
        arguments = () if options.template else line.rest[1:]
        added.append(f"--comment={_whole_comment(values, arguments, _comment(first, text))}")
    if values.get(CHECKPOINT.name):
        if [option.name for option in first if option.name in _REQUEUES][-1:] == ["no-requeue"]:
            raise ValueError(f"{CHECKPOINT.flag} with --no-requeue: a job that is preempted must be requeued")
        added.append("--requeue")
        if _given("open-mode", first, text, "SBATCH_OPEN_MODE") is None:
            added.append("--open-mode=append")  # else Slurm empties the output of earlier runs
    environment = exported(values, SCHEDULED)
    words = [word for option in (*kept, *later) for word in option.words]
    script_words = [] if options.template else list(line.rest)
    end = ["--"] if script_words and script_words[0].startswith("-") else []
    stdin = None if text is None or script_words else text.encode("utf-8", "surrogateescape")
    argv = ("sbatch", *added, *words, *end, *script_words)
    return Submission(argv, stdin, environment, text, bool(options.template))


def _whole_comment(values: dict[str, str], arguments: Sequence[str], users: str) -> str:
    """Our word and the user's own comment. Raises ValueError for more than Slurm takes."""
    length = 0
    for told in (_with_parameters(values, arguments), values):
        whole = " ".join(filter(None, (comment.write(told), users)))
        if (length := len(os.fsencode(whole))) <= _LONGEST_COMMENT:
            return whole
    raise ValueError(
        f"the job's comment has {length} bytes with the options of sxbatch and your own comment; Slurm takes at most "
        f"{_LONGEST_COMMENT}"
    )


def _with_parameters(values: dict[str, str], arguments: Sequence[str]) -> dict[str, str]:
    """The values of a training of a sweep, with the hyper-parameters among its script's arguments.

    So the daemon knows them before the training runs, and can tell which to try first. Comments are public: only
    numbers and plain words are taken, and none if they are too many for a comment.
    """
    if not values.get(SWEEP.name) or PARAMS.name in values:
        return values
    found = {name: value for name, value in of_command(arguments).items() if is_plain(value)}
    try:
        return {**values, PARAMS.name: PARAMS.canonical(listed(found))} if found else values
    except ValueError:
        return values


def show(submission: Submission, *, as_json: bool) -> None:
    """Print what would be submitted: the command line as a comment, then the script."""
    if as_json:
        found = {
            "command": submission.argv,
            "environment": submission.environment,
            "script": submission.shown,
            "generated": submission.is_generated,
        }
        sys.stdout.write(json.dumps(found) + "\n")
        return
    variables = [f"{key}={_word(value)}" for key, value in submission.environment.items()]
    line = " ".join([*variables, *(_word(word) for word in submission.argv)])
    sys.stdout.flush()
    text = f"# {line}\n{submission.shown or ''}"
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()


def submit(submission: Submission, *, as_json: bool) -> int:
    """Run sbatch; returns its exit code, or 2 if there is none. With `as_json` prints the job's id and the command."""
    try:
        status = _run(submission, as_json=as_json)
        if status and submission.is_generated and (why := array_size.why_refused(submission.shown or "")):
            sys.stderr.write(f"sxbatch: {why}\n")
        return status
    except (FileNotFoundError, PermissionError):  # the latter if PATH has a directory closed to this user
        sys.stderr.write(_NO_SBATCH)
        return 2
    except OSError as error:
        sys.stderr.write(f"sxbatch: error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(submission: Submission, *, as_json: bool) -> int:
    argv, environment = submission.argv, {**for_submission(os.environ), **submission.environment}
    if not as_json:
        return _status(subprocess.run(argv, env=environment, input=submission.stdin, check=False).returncode)
    argv = (argv[0], "--parsable", *argv[1:])
    done = subprocess.run(argv, env=environment, input=submission.stdin, stdout=subprocess.PIPE, check=False)
    answer = done.stdout.decode(errors="replace")
    last = (answer.strip().splitlines() or [""])[-1]
    job_id, _, cluster = last.partition(";")
    if job_id.isdecimal():  # whatever the status: with --wait it is the job's
        found = {"job_id": int(job_id), "cluster": cluster or None, "command": submission.argv}
        sys.stdout.write(json.dumps(found) + "\n")
    elif answer:
        sys.stderr.write(answer)
    return _status(done.returncode)


def _status(code: int) -> int:
    """An exit status as a shell tells it, 128 + n if signal n ended sbatch, as where nobody reads what it prints."""
    return code if code >= 0 else 128 - code


def _word(text: str) -> str:
    """One word of shell, on one line whatever it holds: a line break must not end the comment it is shown in."""
    if all(c.isprintable() or "\udc80" <= c <= "\udcff" for c in text):
        return shlex.quote(text)
    escaped = text.encode("utf-8", "surrogateescape").decode("latin-1")
    return "$'" + "".join(c if " " <= c <= "~" and c not in "'\\" else f"\\x{ord(c):02x}" for c in escaped) + "'"


def _render(options: argparse.Namespace, command: Sequence[str]) -> str:
    grid = _pairs(options.param_grid, "--param-grid")
    tried = {key: value.split(",") for key, value in grid.items()}
    if strange := [key for key, found in tried.items() if "" in found or len({*found}) < len(found)]:
        raise ValueError(f"--param-grid {strange[0]}={grid[strange[0]]}: accepted are different values, none empty")
    parameters = _pairs(options.param, "--param")
    if options.array_limit:
        parameters["array_limit"] = str(options.array_limit)
    values = job_values(options)
    if sweep := values.get(SWEEP.name):
        parameters.setdefault("name", re.sub(r"[^\w.:@%+-]+", "-", sweep))  # a template takes fewer characters
    return template.render(options.template, parameters, tried, command, values.get(CHECKPOINT.name))


def _comment(options: Sequence[SbatchOption], script: str | None) -> str:
    """The user's own comment. No variable of sbatch's holds one."""
    found = _given("comment", options, script)
    if found and comment.words(found):
        raise ValueError(
            f"the comment {found!r} has an entry {comment.PREFIX}..., which conflicts with sxbatch's options"
        )
    return found or ""


def _hidden(values: Mapping[str, str], options: Sequence[SbatchOption], script: str | None) -> list[str]:
    """The variables that the job would read, and that sbatch keeps from it. Raises ValueError as `script_value`."""
    export = _given("export", options, script, "SBATCH_EXPORT")
    if export is None or "ALL" in export.upper().split(","):
        return []
    told = {name: value for name, value in values.items() if value and (name, value) != _ASSUMED}
    return [option.variable for option in SCHEDULED if option.is_read_in_job and option.name in told]


def _given(name: str, options: Sequence[SbatchOption], script: str | None, variable: str = "") -> str | None:
    """The value of an option of sbatch, by its precedence: command line, environment, script."""
    values = [option.value for option in options if option.name == name]
    value = values[-1] if values else os.environ.get(variable)
    return script_value(script, name) if value is None and script is not None else value


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"{option} {text!r} is not KEY=VALUE")
        if key in pairs:
            raise ValueError(f"{option} gives {key!r} twice")
        pairs[key] = value
    return pairs


if __name__ == "__main__":
    sys.exit(main())
