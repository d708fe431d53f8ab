"""What is said to sbatch: on its command line (our options, sbatch's, the script with its arguments), and in scripts.

The table of sbatch's options is what 22.05 accepts, and what newer versions added (up to 26.11), by Slurm's
src/common/slurm_opt.c.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# -F, which sbatch's help leaves out, is --nodefile. The value of -k is optional, so it is never a word of its own.
SHORT_WITH_VALUE = frozenset("ABCDFGJLMNSabcdeimnopqtwx")
LONG_WITH_VALUE = frozenset(
    {
        "account",
        "acctg-freq",
        "array",
        "batch",
        "bb",
        "bbf",
        "begin",
        "chdir",
        "cluster",
        "cluster-constraint",
        "clusters",
        "comment",
        "constraint",
        "container",
        "container-id",
        "context",
        "core-spec",
        "cores-per-socket",
        "cpu-freq",
        "cpus-per-gpu",
        "cpus-per-task",
        "deadline",
        "delay-boot",
        "dependency",
        "distribution",
        "error",
        "exclude",
        "export",
        "export-file",
        "extra",
        "extra-node-info",
        "gid",
        "gpu-bind",
        "gpu-freq",
        "gpus",
        "gpus-per-node",
        "gpus-per-socket",
        "gpus-per-task",
        "gres",
        "gres-flags",
        "hint",
        "input",
        "job-name",
        "kill-on-invalid-dep",
        "licenses",
        "mail-type",
        "mail-user",
        "mcs-label",
        "mem",
        "mem-bind",
        "mem-per-cpu",
        "mem-per-gpu",
        "mem-update",
        "mincpus",
        "network",
        "nodefile",
        "nodelist",
        "nodes",
        "ntasks",
        "ntasks-per-core",
        "ntasks-per-gpu",
        "ntasks-per-node",
        "ntasks-per-socket",
        "ntasks-per-tres",
        "open-mode",
        "output",
        "partition",
        "power",
        "prefer",
        "priority",
        "profile",
        "qos",
        "reservation",
        "resources",
        "runtime",
        "segment",
        "signal",
        "sockets-per-node",
        "switches",
        "tasks-per-node",
        "thread-spec",
        "threads-per-core",
        "time",
        "time-min",
        "tmp",
        "tres-bind",
        "tres-per-task",
        "uid",
        "wait-all-nodes",
        "wckey",
        "wrap",
    }
)

# Without a value, or with an optional one that is only accepted as --option=value.
LONG_WITHOUT_VALUE = frozenset(
    {
        "consolidate-segments",
        "contiguous",
        "exclusive",
        "external",
        "get-user-env",
        "help",
        "hold",
        "ignore-pbs",
        "nice",
        "no-kill",
        "no-requeue",
        "oom-kill-step",
        "overcommit",
        "oversubscribe",
        "parsable",
        "propagate",
        "quiet",
        "reboot",
        "requeue",
        "resv-ports",
        "spread-job",
        "spread-segments",
        "stepmgr",
        "test-only",
        "usage",
        "use-min-nodes",
        "verbose",
        "version",
        "wait",
    }
)


_LONG_OF_SHORT = {"D": "chdir"}
"""Of the short options those whose value is needed."""

_KNOWN = LONG_WITH_VALUE | LONG_WITHOUT_VALUE
_SPACE = " \t\v\f\r"
_SEPARATOR = ":"
_SCRIPT_SEPARATORS = ("hetjob", "packjob")
"""They begin another component of a heterogeneous job, on the command line and in a script."""


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """An option of sbatch as it was given. `name` is the full long name; empty for unknown and most short options."""

    name: str
    words: tuple[str, ...]

    @property
    def value(self) -> str:
        """The value, which may be a word of its own."""
        word = self.words[-1]
        if len(self.words) > 1:
            return word
        return word.partition("=")[2] if word.startswith("--") else _short_with_value(word)[1]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line taken apart. `own` are our options, each as one word; `unknown` long options nobody knows.

    A heterogeneous job has the options of all components in `options`, with `:` between them.
    """

    own: tuple[str, ...]
    options: tuple[SbatchOption, ...]
    rest: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def first(self) -> tuple[SbatchOption, ...]:
        """The options of the only component, or of the first one, which ours are for."""
        return tuple(itertools.takewhile(lambda option: option.words != (_SEPARATOR,), self.options))


def split(words: Sequence[str], own: Mapping[str, bool]) -> CommandLine:
    """Take a command line apart. `own` says of each of our long options whether it takes a value.

    The first word that is no option and no option's value is the script; it and all after it are `rest`. `--` ends the
    options, too. Raises ValueError for an option of ours without its value.
    """
    mine: list[str] = []
    options: list[SbatchOption] = []
    unknown: list[str] = []
    at = 0
    while at < len(words) and _is_option(words[at]):
        word, following = words[at], words[at + 1] if at + 1 < len(words) else None
        name, equals, _ = word[2:].partition("=")
        at += 1
        if word == "-h" and "help" in own:
            mine.append("--help")
        elif word.startswith("--") and name in own:
            if own[name] and not equals:
                if following is None:
                    raise ValueError(f"{word} needs a value")
                word, at = f"{word}={following}", at + 1
            mine.append(word)
        else:
            if word.startswith("--"):
                full = _full_name(name)
                takes = not equals and _long_takes_next(full, following)
                if not full:
                    unknown.append(name)
            else:
                letter, joined = _short_with_value(word)
                full = _LONG_OF_SHORT.get(letter, "")
                takes = bool(letter) and not joined
            count = 1 if takes and following is not None else 0
            options.append(SbatchOption(full, (word, *words[at : at + count])))
            at += count
    if at < len(words) and words[at] == "--":
        at += 1
    return CommandLine(tuple(mine), tuple(options), tuple(words[at:]), tuple(unknown))


def _is_option(word: str) -> bool:
    return word == _SEPARATOR or (word.startswith("-") and word not in ("-", "--"))


def read_script(name: str, directory: str) -> str | None:
    """The text of a script; None for what is no file, which is sbatch's to judge. Raises ValueError if unreadable.

    A name that does not begin with . or / sbatch seeks in the job's `directory` (--chdir), then on PATH, then here. A
    pipe, as in `sxbatch <(make-script)`, is left alone: it can be read only once.
    """
    places = [] if name.startswith((".", "/")) else ["", *os.get_exec_path()]
    sought = (Path(directory, place, name) for place in places)
    path = next((path for path in sought if _is_file(path) and os.access(path, os.R_OK)), Path(name))
    if not _is_file(path):
        return None
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113  Path.is_file raises for closed directories and long words


def directives(script: str, mark: str) -> list[tuple[int, list[str]]]:
    """The (line number, words) of the lines starting with `mark`, such as #SBATCH, up to the first command.

    There sbatch stops reading, too: only a line feed ends a line, comments may be indented, and nothing need stand
    between the mark and an option. Raises ValueError for unbalanced quotes.
    """
    found = []
    for number, line in enumerate(script.split("\n"), start=1):
        text = line.lstrip(_SPACE)
        if text and not text.startswith("#"):
            break
        if line.startswith(mark):
            try:
                found.append((number, _words(line.removeprefix(mark))))
            except ValueError as error:
                raise ValueError(f"line {number} of the script: {mark}: {error}") from error
    return found


def _words(line: str) -> list[str]:
    """The words up to a comment, as by `get_argument` of Slurm's src/sbatch/opt.c (24.05 to 26.11). Raises ValueError.

    Unlike for a shell, a backslash takes any character literally between quotes of both kinds, too, and vanishes at the
    end of the line and before a tab. Up to 23.11 it takes no blank outside of quotes: it vanishes, and the word ends.
    """
    words, quote, escapes = [""], "", False
    for character in line:
        if not quote and character in _SPACE and not (escapes and character == " "):
            words.append("")
            escapes = False
        elif escapes:
            words[-1] += character
            escapes = False
        elif character == "\\":
            escapes = True
        elif character == quote:
            quote = ""
        elif not quote and character in "\"'":
            quote = character
        elif not quote and character == "#":
            break
        else:
            words[-1] += character
    if quote:
        raise ValueError(f"unmatched {quote}")
    return [word for word in words if word]


def script_value(script: str, name: str) -> str | None:
    """The value that the script's #SBATCH lines give the job, or its first component. The last one counts."""
    found = None
    for _, line in directives(script, "#SBATCH"):
        if line and line[0].lower() in _SCRIPT_SEPARATORS:
            break
        for option in split(line, {}).options:
            found = option.value if option.name == name else found
    return found


def _full_name(name: str) -> str:
    """The option of sbatch that is meant: like getopt_long, sbatch accepts unambiguous beginnings. Empty if none is."""
    if name in _KNOWN:
        return name
    meant = [known for known in _KNOWN if name and known.startswith(name)]
    return meant[0] if len(meant) == 1 else ""


def _long_takes_next(full: str, following: str | None) -> bool:
    """An unknown option (a SPANK plugin's, a newer sbatch's) takes the next word unless that can be the script."""
    if full:
        return full in LONG_WITH_VALUE
    return following is not None and not following.startswith("-") and not os.path.isfile(following)  # noqa: PTH113


def _short_with_value(word: str) -> tuple[str, str]:
    """The option that takes a value, of short ones that may be joined as in -HN 2, and a joined value as in -HN2.

    Empty if none takes one.
    """
    for at, letter in enumerate(word[1:], start=1):
        if letter in SHORT_WITH_VALUE:
            return letter, word[at + 1 :]
        if letter == "k":
            break
    return "", ""
