"""What is made from the table: the C header, the names in job_submit.lua, and the table of the docs.

    python -m explsched.job_options.generated header FILE      # CMake calls it
    python -m explsched.job_options.generated lua TEMPLATE     # prints job_submit.lua
    python -m explsched.job_options.generated docs docs/researcher.md

The SPANK plugin (slurm_plugin/spank) expands the header's EXPL_OPTIONS; the kernel gate (kernel_intercept/gate) needs
some names.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from explsched.job_options.comment import CONTROL_VARIABLE, PREFIX, UNQUOTED
from explsched.job_options.table import CHECKPOINT, OPTIONS, SCHEDULED, Option, Topic
from explsched.job_options.values import MAX_GPUS, PAIRS_BYTES, TEXT_BYTES

PLACEHOLDER = "-- @job_options@\n"
BEGIN = "<!-- job options: made by `python -m explsched.job_options.generated docs`, do not edit -->\n"
END = "<!-- job options: end -->\n"


def header() -> str:
    """The text of the header."""
    return "\n".join([*_header_lines(), ""])


def job_submit_script(template: str) -> str:
    """The text of job_submit.lua, of a template with the placeholder. Raises ValueError for one without."""
    before, found, after = template.partition(PLACEHOLDER)
    if not found:
        raise ValueError(f"the template of job_submit.lua has no line {PLACEHOLDER.strip()!r}")
    return before + _lua_table() + after


def with_table(page: str) -> str:
    """A page of docs with the present table between its marks. Raises ValueError for a page without marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()!r} and {END.strip()!r}")
    return before + BEGIN + "\n" + "\n".join(_table()) + "\n\n" + END + after


def main(arguments: list[str] | None = None) -> int:
    """Make what is asked for; a file that holds the same already is left alone, so that nothing is built anew."""
    parser = argparse.ArgumentParser(prog="explsched.job_options.generated", description=__doc__)
    parser.add_argument("what", choices=("header", "lua", "docs"))
    parser.add_argument("path", type=Path)
    asked = parser.parse_args(arguments)
    path: Path = asked.path
    if asked.what == "lua":
        sys.stdout.write(job_submit_script(path.read_text(encoding="utf-8")))
        return 0
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = header() if asked.what == "header" else with_table(before)
    if after != before:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(after, encoding="utf-8")
    return 0


def _header_lines() -> Iterator[str]:
    yield "/* Made from explsched/job_options/table.py by explsched.job_options.generated. */"
    yield "#ifndef EXPLSCHED_JOB_OPTIONS_H"
    yield "#define EXPLSCHED_JOB_OPTIONS_H"
    yield ""
    yield f"#define EXPL_TEXT_BYTES {TEXT_BYTES}"
    yield f"#define EXPL_PAIRS_BYTES {PAIRS_BYTES}"
    yield f"#define EXPL_MAX_GPUS {MAX_GPUS}"
    yield f"#define EXPL_CONTROL_VARIABLE {_quoted(CONTROL_VARIABLE)}"
    yield f"#define EXPL_UNQUOTED {_quoted('_.-~' + UNQUOTED)}"
    yield ""
    for option in OPTIONS:
        yield f"#define EXPL_{option.yaml_key.upper()}_VARIABLE {_quoted(option.variable)}"
    yield ""
    yield "/* OPTION(name, argument, usage, accepted, variable, key, shares the GPU, is a consent, kind,"
    yield " * choices and a NULL) */"
    yield "#define EXPL_OPTIONS(OPTION) \\"
    yield " \\\n".join(f"    OPTION({', '.join(_row(option))})" for option in SCHEDULED)
    yield ""
    yield "#endif"


def _row(option: Option) -> Iterator[str]:
    yield _quoted(option.spank_name)
    yield _quoted(option.metavar) if option.metavar else "NULL"
    yield _quoted(f"[explsched] {option.help}")
    yield _quoted(option.kind.accepted)
    yield _quoted(option.variable)
    yield _quoted(option.key)
    yield str(option.topic is Topic.SHARING).lower()
    yield str(option.is_consent).lower()
    yield f"expl_{option.kind.c_name}"
    yield from map(_quoted, option.kind.choices)
    yield "NULL"


def _quoted(text: str) -> str:
    return json.dumps(text)


def _lua_table() -> str:
    lines = [
        f"local PREFIX = {json.dumps(PREFIX)}",
        f"local CONTROL_VARIABLE = {json.dumps(CONTROL_VARIABLE)}",
        f"local CHECKPOINT = {json.dumps(CHECKPOINT.key)}",
        f"local CHECKPOINT_FLAG = {json.dumps(f'--{CHECKPOINT.spank_name}')}",
    ]
    return "\n".join(lines) + "\n"


def _table() -> Iterator[str]:
    yield "| option | of | accepted | meaning |"
    yield "|---|---|---|---|"
    for option in OPTIONS:
        commands = ", ".join(f"`{command}`" for command in option.commands)
        yield f"| `{option.name}` | {commands} | {_cell(option.kind.accepted)} | {_cell(option.help)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
