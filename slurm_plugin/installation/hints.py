"""What only the admin can do: lines in Slurm's own configuration, which is never changed from here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from slurm_plugin.installation import record
from slurm_plugin.installation.layout import Places

STEPS = (
    "systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload",
    "sacctmgr add user explsched account=root AdminLevel=Operator",
    "sexplsched config check && runuser -u explsched -- sexplsched doctor",
    "systemctl enable --now sexplschedd",
)
"""From installed files to a running service."""


def hints(root: Path, places: Places) -> Iterator[str]:
    """What Slurm's configuration lacks for our options on plain sbatch, and what keeps the service from starting."""
    slurm = record.below(root, Path(os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf").absolute())
    plugins = _settings(slurm.with_name("plugstack.conf"), *sorted(slurm.parent.glob("plugstack.conf.d/*")))
    if not re.search(r"^\s*(optional|required)\s+\S*explsched\.so\b", plugins, re.MULTILINE):
        yield "plugstack.conf has no explsched.so: plain sbatch lacks the --expl-... options (docs/admin.md)"
    elif re.search(r"^\s*required\s+\S*explsched\.so\b", plugins, re.MULTILINE):
        yield "plugstack.conf has explsched.so as required: write optional, so that a fault of ours never drains a node"
    lua = places.prefix / "share/explsched/job_submit.lua"
    if not re.search(r"^\s*JobSubmitPlugins\s*=.*\blua\b", _settings(slurm), re.MULTILINE | re.IGNORECASE):
        yield f"slurm.conf has no JobSubmitPlugins=lua: with it and {lua} the scheduler learns of these options"
    elif "explsched_submit" not in _settings(slurm.with_name("job_submit.lua")):
        yield f"job_submit.lua does not call explsched_submit: see {lua}"
    if places.commands.is_relative_to("/home") or places.commands.is_relative_to("/root"):
        yield f"the service sees no home directories, and {places.commands} is in one: install to /opt or /usr/local"


def _settings(*paths: Path) -> str:
    """The text of those files that exist, without comments."""
    found = [record.content(path) for path in paths]
    text = "\n".join(data.decode(errors="replace") for data in found if data is not None)
    return re.sub(r"(^|\s)(#|--).*", r"\1", text)
