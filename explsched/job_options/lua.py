"""The part of job_submit.lua that is made from the table.

`python -m explsched.job_options.lua TEMPLATE` prints the whole script.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from explsched.job_options.comment import CONTROL_VARIABLE, PREFIX
from explsched.job_options.table import CHECKPOINT, SCHEDULED

PLACEHOLDER = "-- @job_options@\n"


def filled(template: str) -> str:
    """The text of job_submit.lua, of a template with the placeholder. Raises ValueError for one without."""
    before, found, after = template.partition(PLACEHOLDER)
    if not found:
        raise ValueError(f"the template of job_submit.lua has no line {PLACEHOLDER.strip()!r}")
    return before + _table() + after


def _table() -> str:
    former = {key: option.key for option in SCHEDULED for key in option.former.keys}
    lines = [
        f"local PREFIX = {json.dumps(PREFIX)}",
        f"local CONTROL_VARIABLE = {json.dumps(CONTROL_VARIABLE)}",
        f"local CHECKPOINT = {json.dumps(CHECKPOINT.key)}",
        f"local CHECKPOINT_FLAG = {json.dumps(f'--{CHECKPOINT.spank_name}')}",
        "local FORMER_KEYS = {",
        *(f"    [{json.dumps(key)}] = {json.dumps(present)}," for key, present in former.items()),
        "}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(filled(Path(sys.argv[1]).read_text(encoding="utf-8")))
