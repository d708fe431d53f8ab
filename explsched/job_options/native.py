"""Makes the C header with the table: `python -m explsched.job_options.native FILE`. CMake calls it.

The SPANK plugin (slurm_plugin/spank) expands EXPL_OPTIONS; the kernel gate (kernel_intercept/gate) needs some names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from explsched.job_options.comment import CONTROL_VARIABLE, UNQUOTED
from explsched.job_options.table import OPTIONS, SCHEDULED, Option, Topic
from explsched.job_options.values import MAX_GPUS, PAIRS_BYTES, TEXT_BYTES


def header() -> str:
    """The text of the header."""
    return "\n".join([*_lines(), ""])


def main(arguments: list[str] | None = None) -> int:
    """Write the header to the file that is named, unless it holds the same already: nothing is compiled anew then."""
    (name,) = sys.argv[1:] if arguments is None else arguments
    path, text = Path(name), header()
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


def _lines() -> Iterator[str]:
    yield "/* Made from explsched/job_options/table.py by explsched.job_options.native. */"
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
        name = option.yaml_key.upper()
        yield f"#define EXPL_{name}_VARIABLE {_quoted(option.variable)}"
        if option.former.variables:
            yield f"#define EXPL_{name}_FORMER_VARIABLE {_quoted(_former_variable(option))}"
    yield ""
    yield "/* OPTION(name, argument, usage, accepted, variable, former variable, key, shares the GPU, is a consent,"
    yield " * is read in the job, kind, choices and a NULL) */"
    yield "#define EXPL_OPTIONS(OPTION) \\"
    yield " \\\n".join(f"    OPTION({', '.join(_row(option))})" for option in SCHEDULED)
    yield ""
    yield "/* FORMER(former name, index of the option) */"
    yield "#define EXPL_FORMER_OPTIONS(FORMER) \\"
    former = [(name, at) for at, option in enumerate(SCHEDULED) for name in option.former.spank_flags]
    yield " \\\n".join(f"    FORMER({_quoted(name)}, {at})" for name, at in former)
    yield ""
    yield "#endif"


def _row(option: Option) -> Iterator[str]:
    yield _quoted(option.spank_name)
    yield _quoted(option.metavar) if option.metavar else "NULL"
    yield _quoted(f"[explsched] {option.help}")
    yield _quoted(option.kind.accepted)
    yield _quoted(option.variable)
    yield _quoted(_former_variable(option)) if option.former.variables else "NULL"
    yield _quoted(option.key)
    yield str(option.topic is Topic.SHARING).lower()
    yield str(option.is_consent).lower()
    yield str(option.is_read_in_job).lower()
    yield f"expl_{option.kind.c_name}"
    yield from map(_quoted, option.kind.choices)
    yield "NULL"


def _former_variable(option: Option) -> str:
    (name,) = option.former.variables
    return name


def _quoted(text: str) -> str:
    return json.dumps(text)


if __name__ == "__main__":
    sys.exit(main())
