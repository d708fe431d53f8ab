"""The job_submit.lua that sites get."""

from pathlib import Path

from explsched.job_options import lua

_TEMPLATE = Path(__file__).parents[1] / "slurm_plugin/etc/job_submit.lua.in"


def script() -> str:
    """Its text, as `scripts/system-files` makes it."""
    return lua.filled(_TEMPLATE.read_text(encoding="utf-8"))
