"""Job options on a command line that argparse reads, in its help text, and in environment variables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from explsched.job_options.table import Option
from explsched.job_options.values import Fraction, is_former

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
            if isinstance(option.kind, Fraction) and is_former(text):  # which a command line never accepted
                raise ValueError(f"found {text!r}, accepted: {option.kind.accepted}")
            return option.canonical(text) if text else ""
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return canonical


class Found(NamedTuple):
    """Values in their canonical form by the option's name, and what is wrong or old-fashioned about variables."""

    values: dict[str, str]
    warnings: tuple[str, ...]


def read(environment: Mapping[str, str], options: Iterable[Option]) -> Found:
    """What the environment says, for the job it belongs to. A variable with an unusable value is passed over."""
    return _read(environment, ((option, option.former.variables) for option in options))


def read_for_submission(environment: Mapping[str, str], options: Iterable[Option]) -> Found:
    """What the environment says about a job that is about to be submitted.

    Inside a job the variables are that job's own, so its consents are passed over: they do not hold for another job.
    """
    inside = bool(environment.get(_JOB))
    return _read(
        environment,
        (
            (option, option.former.variables + option.former.submission_variables)
            for option in options
            if not (inside and option.is_consent)
        ),
    )


def exported(values: Mapping[str, str], options: Iterable[Option]) -> dict[str, str]:
    """The variables that say these values; where jobs read them, in the former spelling, too, for one release more."""
    found: dict[str, str] = {}
    for option in options:
        if option.name in values:
            names = (option.variable, *(option.former.variables if option.is_read_in_job else ()))
            found |= dict.fromkeys(names, values[option.name])
    return found


def _read(environment: Mapping[str, str], wanted: Iterable[tuple[Option, tuple[str, ...]]]) -> Found:
    values: dict[str, str] = {}
    warnings: list[str] = []
    for option, former in wanted:
        name = next((name for name in (option.variable, *former) if environment.get(name)), None)
        if name is None:
            continue
        text = environment[name]
        try:
            values[option.name] = option.canonical(text)
            warnings += _advice(option, name, text)
        except ValueError as error:
            warnings.append(f"{name} is ignored: {error}")
    return Found(values, tuple(warnings))


def _advice(option: Option, name: str, text: str) -> Iterator[str]:
    value = option.canonical(text)
    if name != option.variable:
        yield f"{name} is now {option.variable}; the former name will not be read by the next release"
    elif isinstance(option.kind, Fraction) and is_former(text):
        yield f"{name}={text} is now {name}={value}; thousandths will not be read by the next release"
