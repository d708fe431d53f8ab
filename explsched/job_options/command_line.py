"""Job options on a command line that argparse reads, in its help text, and in environment variables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from explsched.job_options.table import Option

_JOB = "SLURM_JOB_ID"


def add(parser: argparse._ActionsContainer, option: Option) -> None:
    """Give the parser the option. Its value is in canonical form; None if it was not given."""
    if not option.metavar:
        parser.add_argument(option.flag, action="store_const", const="1", help=option.help)
        return
    choices = option.kind.choices  # bash completes them
    parser.add_argument(
        option.flag,
        type=_canonical(option),
        choices=(*choices, "") if choices else None,
        metavar=option.metavar,
        help=option.help,
    )


class _Release(argparse.Action):
    """Prints the installed release and ends. It is looked up only then: that takes longer than the rest of a start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"{parser.prog} {version('explsched')}\n")
        parser.exit()


def add_version(parser: argparse.ArgumentParser) -> None:
    """Give the parser `--version`."""
    parser.add_argument("--version", action=_Release, nargs=0, help="print the installed release and exit")


def variable_lines(options: Iterable[Option], column: int) -> str:
    """One line for each option's variable, padded to `column`, for the section `environment:` of a help text."""
    return "\n".join(f"  {option.variable:<{column}}  {_meaning(option)}" for option in options)


def _meaning(option: Option) -> str:
    return f"default of {option.flag}" if option.metavar else f"1: as {option.flag}"


def _canonical(option: Option) -> Callable[[str], str]:
    def canonical(text: str) -> str:
        try:
            return option.canonical(text) if text else ""
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return canonical


class Found(NamedTuple):
    """Values in their canonical form by the option's name, and what is wrong with other variables."""

    values: dict[str, str]
    warnings: tuple[str, ...]


def read(environment: Mapping[str, str], options: Iterable[Option]) -> Found:
    """What the environment says, for the job it belongs to. A variable with an unusable value is passed over."""
    values: dict[str, str] = {}
    warnings: list[str] = []
    for option in options:
        if text := environment.get(option.variable):
            try:
                values[option.name] = option.canonical(text)
            except ValueError as error:
                warnings.append(f"{option.variable} is ignored: {error}")
    return Found(values, tuple(warnings))


def read_for_submission(environment: Mapping[str, str], options: Iterable[Option]) -> Found:
    """What the environment says about a job that is about to be submitted.

    Inside a job the variables are that job's own, so its consents are passed over: they do not hold for another job.
    """
    inside = bool(environment.get(_JOB))
    return read(environment, (option for option in options if not (inside and option.is_consent)))


def exported(values: Mapping[str, str], options: Iterable[Option]) -> dict[str, str]:
    """The variables that say these values."""
    return {option.variable: values[option.name] for option in options if option.name in values}
