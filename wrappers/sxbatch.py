"""`sxbatch`: sbatch with explsched's options. Every option that is not ours goes to sbatch untouched.

sxbatch --sweep digits --checkpoint USR1 --stop --gres=gpu:1 train.sh
sxbatch --sweep digits --template sweep --param-grid lr=0.1,0.01 --param gpus=1 -- python train.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

from explsched.checkpoint import SIGNAL_VARIABLE
from wrappers import directives, template
from wrappers.elastic import ELASTIC_VARIABLE
from wrappers.follow import METRIC_VARIABLE
from wrappers.own_options import VALUES, read
from wrappers.own_options import options_parser as options_parser  # man page and completion are made from it
from wrappers.sbatch_options import CommandLine, SbatchOption
from wrappers.submission import Submission, show, submit

_TOKEN = "explsched:"  # noqa: S105  no secret: it marks our word of the comment


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns sbatch's exit code, or 2 for an error of ours."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options, line = read(words)
        submission = prepare(options, line)
    except (template.TemplateError, ValueError) as error:
        sys.stderr.write(f"sxbatch: error: {error}\n")
        return 2
    if options.dry_run:
        show(submission, as_json=options.json)
        return 0
    return submit(submission, as_json=options.json)


def prepare(options: argparse.Namespace, line: CommandLine) -> Submission:
    """Turn parsed options and sbatch's own words into a submission. Raises ValueError or TemplateError."""
    text = script = None
    if options.template:
        text = script = _render(options, line.rest)
    elif options.param or options.param_grid or options.array_limit:
        raise ValueError("--param, --param-grid and --array-limit need --template")
    elif line.rest:
        text = directives.read_script(Path(line.rest[0]))
    own = _explsched_word(options)
    kept = list(line.options)
    added = []
    if own:  # our --comment would hide the user's, wherever it comes from
        kept = [option for option in kept if option.name != "comment"]
        added.append("--comment=" + " ".join(part for part in (own, _comment(line.options, text)) if part))
    environment = {}
    if options.metric:
        environment[METRIC_VARIABLE] = options.metric
    if options.checkpoint:
        added.append("--requeue")
        environment[SIGNAL_VARIABLE] = options.checkpoint
    if options.elastic:
        environment[ELASTIC_VARIABLE] = options.elastic
    if environment and not _exports_everything(kept):
        sys.stderr.write(f"sxbatch: --export keeps {' and '.join(environment)} from the job\n")
    words = [word for option in kept for word in option.words]
    script_words = [] if options.template else list(line.rest)
    end = ["--"] if script_words and script_words[0].startswith("-") else []
    return Submission(("sbatch", *added, *words, *end, *script_words), script, environment, text)


def _render(options: argparse.Namespace, command: Sequence[str]) -> str:
    grid = _pairs(options.param_grid, "--param-grid")
    parameters = _pairs(options.param, "--param")
    if options.array_limit:
        parameters["array_limit"] = str(options.array_limit)
    if options.sweep:
        parameters.setdefault("name", options.sweep)
    return template.render(options.template, parameters, {key: v.split(",") for key, v in grid.items()}, command)


def _explsched_word(options: argparse.Namespace) -> str:
    """The word of the job's comment that tells the daemon about the job; URL-encoded, so it has no blanks."""
    pairs = {key: getattr(options, key) for key in VALUES}
    if options.stop:
        pairs["stop"] = "1"
    given = {key: value for key, value in pairs.items() if value}
    return f"{_TOKEN}{urlencode(given, safe='/')}" if given else ""


def _comment(options: Sequence[SbatchOption], script: str | None) -> str:
    """The user's own comment, by sbatch's precedence: command line, environment, script."""
    given = [option.value for option in options if option.name == "comment"]
    comment = given[-1] if given else os.environ.get("SBATCH_COMMENT")
    if comment is None and script is not None:
        comment = directives.sbatch_comment(script)
    if comment and any(word.startswith(_TOKEN) for word in comment.split()):
        raise ValueError(f"the comment {comment!r} has a word {_TOKEN}..., which sxbatch's options would contradict")
    return comment or ""


def _exports_everything(options: Sequence[SbatchOption]) -> bool:
    given = [option.value for option in options if option.name == "export"]
    value = given[-1] if given else os.environ.get("SBATCH_EXPORT", "ALL")
    return "ALL" in value.upper().split(",")


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
