"""`sxbatch`: sbatch with explsched's options. Every option that is not ours goes to sbatch untouched.

sxbatch --sweep digits --checkpoint USR1 --stop --gres=gpu:1 train.sh
sxbatch --sweep digits --template sweep --param-grid lr=0.1,0.01 --param gpus=1 -- python train.py
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from wrappers import template
from wrappers.sbatch_options import LONG_WITH_VALUE, SHORT_WITH_VALUE

_EPILOG = """\
Other options are sbatch's own. Environment: SXBATCH_SWEEP, SXBATCH_METRIC, SXBATCH_DIRECTION,
SXBATCH_CHECKPOINT, SXBATCH_STOP=1 and SXBATCH_TEMPLATE set defaults; '#SXBATCH --sweep=...' lines of
the script come last. With --template the words after '--' are the command to run.

examples:
  sxbatch --sweep digits --checkpoint USR1 --gres=gpu:1 train.sh
  sxbatch --sweep digits --template sweep --param-grid lr=0.1,0.01 --param gpus=1 -- python train.py
"""


@dataclass(frozen=True, slots=True)
class Submission:
    """What will be handed to sbatch: its command line, and the script if a template made one."""

    argv: tuple[str, ...]
    script: str | None
    environment: dict[str, str]


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns sbatch's exit code, or 2 for an error of ours."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options, rest = _parse(words)
        submission = prepare(options, rest)
    except (template.TemplateError, ValueError) as error:
        sys.stderr.write(f"sxbatch: error: {error}\n")
        return 2
    if options.dry_run:
        _show(submission)
        return 0
    return _submit(submission)


def prepare(options: argparse.Namespace, rest: Sequence[str]) -> Submission:
    """Turn parsed options and sbatch's own words into a submission. Raises ValueError or TemplateError."""
    script = None
    if options.template:
        before, _, command = _split(rest)
        grid = dict(_pair(text, "--param-grid") for text in options.param_grid)
        values = {key: value.split(",") for key, value in grid.items()}
        parameters = dict(_pair(text, "--param") for text in options.param)
        if options.sweep:
            parameters.setdefault("name", options.sweep)
        script = template.render(options.template, parameters, values, command)
        rest = before
    elif options.param or options.param_grid:
        raise ValueError("--param and --param-grid need --template")
    own = _explsched_word(options)
    words, comment = _take_comment([word for word in rest if script is None or word != "--"])
    added = []
    if own or comment:
        added.append("--comment=" + " ".join(part for part in (own, comment) if part))
    environment = {}
    if options.checkpoint:
        added.append("--requeue")
        environment["EXPLSCHED_CHECKPOINT_SIGNAL"] = options.checkpoint
    return Submission(("sbatch", *added, *words), script, environment)


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our options, wherever they stand before the script; the rest in its order."""
    parser = _parser()
    own, command = (list(words), []) if "--" not in words else _at(list(words), words.index("--"))
    # sbatch's script arguments may look like our options: what follows the script is never parsed.
    script_at = next((i for i, w in enumerate(own) if Path(w).is_file() and not _is_value(own, i)), len(own))
    options, rest = parser.parse_known_args(own[:script_at])
    _apply_environment(options)
    if script_at < len(own):
        _apply_script_lines(parser, options, Path(own[script_at]))
    return options, [*rest, *own[script_at:], *command]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sxbatch",
        description="Submit a job to Slurm and tell explsched about it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--sweep", help="jobs of a sweep lend each other what is known about their learning curves")
    parser.add_argument("--metric", help="the metric that tells progress (default: loss)")
    parser.add_argument("--direction", choices=("min", "max"), help="whether the metric falls or rises (default: min)")
    parser.add_argument(
        "--checkpoint", metavar="SIGNAL", help="consent to preemption: SIGNAL asks the job to save, then it is requeued"
    )
    parser.add_argument("--stop", action="store_true", default=None, help="consent to being stopped when hopeless")
    parser.add_argument("--template", metavar="NAME", help=f"make the script: {', '.join(template.names())}, or a file")
    parser.add_argument("--param", action="append", default=[], metavar="K=V", help="parameter of the template")
    parser.add_argument("--param-grid", action="append", default=[], metavar="K=V,V", help="values a sweep tries")
    parser.add_argument("--dry-run", action="store_true", help="show script and command, submit nothing")
    return parser


def _is_value(words: Sequence[str], at: int) -> bool:
    """Whether a word is the value of a short option of sbatch such as `-o FILE`, or of one of ours."""
    if at == 0:
        return False
    before = words[at - 1]
    if before.startswith("--"):
        return "=" not in before and before[2:] in LONG_WITH_VALUE
    return len(before) == 2 and before[0] == "-" and before[1] in SHORT_WITH_VALUE


def _at(words: list[str], index: int) -> tuple[list[str], list[str]]:
    return words[:index], words[index:]


def _split(words: Sequence[str]) -> tuple[list[str], str, list[str]]:
    if "--" not in words:
        return list(words), "", []
    at = list(words).index("--")
    return list(words[:at]), "--", list(words[at + 1 :])


def _apply_script_lines(parser: argparse.ArgumentParser, options: argparse.Namespace, script: Path) -> None:
    """`#SXBATCH` lines of the script fill in what the command line left open."""
    for line in script.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("#SXBATCH"):
            found = parser.parse_args(shlex.split(line.removeprefix("#SXBATCH")))
            _fill(options, vars(found))


def _apply_environment(options: argparse.Namespace) -> None:
    named = {key: os.environ.get(f"SXBATCH_{key.upper()}") for key in ("sweep", "metric", "direction", "checkpoint")}
    _fill(options, {**named, "template": os.environ.get("SXBATCH_TEMPLATE")})
    if os.environ.get("SXBATCH_STOP") == "1":
        options.stop = True


def _fill(options: argparse.Namespace, values: dict[str, object]) -> None:
    for key, value in values.items():
        if getattr(options, key) is None and value is not None:
            setattr(options, key, value)


def _explsched_word(options: argparse.Namespace) -> str:
    """The word of the job's comment that tells the daemon about the job; URL-encoded, so it has no blanks."""
    pairs = {key: getattr(options, key) for key in ("sweep", "metric", "direction", "checkpoint")}
    if options.stop:
        pairs["stop"] = "1"
    given = {key: value for key, value in pairs.items() if value}
    return f"explsched:{urlencode(given)}" if given else ""


def _take_comment(words: list[str]) -> tuple[list[str], str]:
    """Remove the user's own --comment: its text is kept behind our word."""
    kept, comment = [], ""
    expected = False
    for word in words:
        if expected:
            comment, expected = word, False
        elif word == "--comment":
            expected = True
        elif word.startswith("--comment="):
            comment = word.partition("=")[2]
        else:
            kept.append(word)
    return kept, comment


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{option} {text!r} is not KEY=VALUE")
    return key, value


def _show(submission: Submission) -> None:
    variables = "".join(f"{key}={shlex.quote(value)} " for key, value in submission.environment.items())
    sys.stdout.write(f"# {variables}{shlex.join(submission.argv)}\n{submission.script or ''}")


def _submit(submission: Submission) -> int:
    environment = {**os.environ, **submission.environment}
    try:
        if submission.script is None:
            return subprocess.run(submission.argv, env=environment, check=False).returncode
        with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:
            file.write(submission.script)
            file.flush()
            return subprocess.run([*submission.argv, file.name], env=environment, check=False).returncode
    except FileNotFoundError:
        sys.stderr.write("sxbatch: error: sbatch is not installed or not on PATH (Debian package slurm-client)\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
