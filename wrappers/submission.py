"""Hands a prepared submission to sbatch, or shows it."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

_NO_SBATCH = "sxbatch: error: sbatch is not installed or not on PATH (Debian package slurm-client)\n"
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Submission:
    """What will be handed to sbatch: its command line, and the script if a template made one.

    `shown` is the text of the script, whoever wrote it, as far as it is known.
    """

    argv: tuple[str, ...]
    script: str | None
    environment: dict[str, str]
    shown: str | None = None


def show(submission: Submission, *, as_json: bool) -> None:
    """Print what would be submitted: the command line as a comment, then the script."""
    if as_json:
        found = {
            "command": submission.argv,
            "environment": submission.environment,
            "script": submission.shown,
            "generated": submission.script is not None,
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
        if submission.script is None:
            return _run(submission, list(submission.argv), as_json=as_json)
        with tempfile.NamedTemporaryFile("w", prefix="sxbatch-", suffix=".sh", encoding="utf-8") as file:
            file.write(submission.script)
            file.flush()
            return _run(submission, [*submission.argv, file.name], as_json=as_json)
    except FileNotFoundError:
        sys.stderr.write(_NO_SBATCH)
        return 2
    except OSError as error:
        sys.stderr.write(f"sxbatch: error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


def nearest_own(name: str, own: Iterable[str]) -> str | None:
    """The option of ours that an unknown long option was meant to be; None if the site's sbatch has it."""
    meant = difflib.get_close_matches(name, own, n=1, cutoff=0.75) or [o for o in own if name and o.startswith(name)]
    if not meant:
        return None
    try:  # SPANK plugins add options, which only sbatch itself can tell
        done = subprocess.run(["sbatch", "--help"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return meant[0]
    return None if re.search(rf"--{re.escape(name)}\b(?!-)", done.stdout) else meant[0]


def _run(submission: Submission, argv: list[str], *, as_json: bool) -> int:
    environment = {**os.environ, **submission.environment}
    if not as_json:
        return subprocess.run(argv, env=environment, check=False).returncode
    argv = [argv[0], "--parsable", *argv[1:]]
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    job_id, _, cluster = last.partition(";")
    if done.returncode == 0 and job_id.isdecimal():
        found = {"job_id": int(job_id), "cluster": cluster or None, "command": submission.argv}
        sys.stdout.write(json.dumps(found) + "\n")
    elif done.stdout:
        sys.stderr.write(done.stdout)
    return done.returncode


def _word(text: str) -> str:
    """One word of shell, on one line whatever it holds: a line break must not end the comment it is shown in."""
    if all(c.isprintable() or "\udc80" <= c <= "\udcff" for c in text):
        return shlex.quote(text)
    escaped = text.encode("utf-8", "surrogateescape").decode("latin-1")
    return "$'" + "".join(c if " " <= c <= "~" and c not in "'\\" else f"\\x{ord(c):02x}" for c in escaped) + "'"
