"""Job options on a command line that argparse reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable

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


def _canonical(option: Option) -> Callable[[str], str]:
    def canonical(text: str) -> str:
        try:
            return option.canonical(text) if text else ""
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return canonical
