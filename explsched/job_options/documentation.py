"""The table as people read it: for help texts, the manual, and the docs.

`python -m explsched.job_options.documentation docs/researcher.md` puts the present table between the marks there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from explsched.job_options.table import OPTIONS, SCHEDULED, Option
from explsched.job_options.values import Fraction

BEGIN = "<!-- job options: made by `python -m explsched.job_options.documentation`, do not edit -->\n"
END = "<!-- job options: end -->\n"


def variable_lines(options: Iterable[Option], column: int) -> str:
    """One line for each option's variable, padded to `column`, for the section `environment:` of a help text."""
    return "\n".join(f"  {option.variable:<{column}}  {_meaning(option)}" for option in options)


def with_tables(page: str) -> str:
    """A page of docs with the present tables between its marks. Raises ValueError for a page without marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()!r} and {END.strip()!r}")
    return before + BEGIN + "\n" + "\n".join(_tables()) + "\n\n" + END + after


def former_spellings(option: Option) -> tuple[str, ...]:
    """The former spellings of an option, as a person would have typed them."""
    former = option.former
    return (
        *former.flags,
        *(f"--{name}" for name in former.spank_flags),
        *former.variables,
        *former.submission_variables,
        *(f"{key}=" for key in former.keys),
    )


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the page that is named."""
    (name,) = sys.argv[1:] if arguments is None else arguments
    path = Path(name)
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def _meaning(option: Option) -> str:
    return f"default of {option.flag}" if option.metavar else f"1: as {option.flag}"


def _tables() -> Iterator[str]:
    yield "| option | accepted | meaning |"
    yield "|---|---|---|"
    for option in OPTIONS:
        only = "" if option.is_scheduled else " (`sxrun` only)"
        yield f"| `{option.name}` | {_cell(_accepted(option))} | {_cell(option.help)}{only} |"
    yield ""
    yield "| now | former spellings, read for one release more |"
    yield "|---|---|"
    for option in SCHEDULED:
        former = [f"`{word}`" for word in former_spellings(option)]
        former += ["thousandths, as in `300` for 0.3"] if isinstance(option.kind, Fraction) else []
        if former:
            yield f"| `{option.name}` | {', '.join(former)} |"


def _accepted(option: Option) -> str:
    return option.kind.accepted


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
