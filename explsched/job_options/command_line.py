"""Job options on a command line that argparse reads, and in its help text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from explsched.job_options import Option


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
