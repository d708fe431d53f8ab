"""Job options in environment variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from explsched.job_options import Option
from explsched.job_options.values import Fraction, is_former

_JOB = "SLURM_JOB_ID"


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
