"""The job_submit.lua that sites get."""

from pathlib import Path

from explsched.job_options.generated import job_submit_script

_TEMPLATE = Path(__file__).parents[1] / "slurm_plugin/etc/job_submit.lua.in"


def script() -> str:
    """Its text, as `scripts/system-files` makes it."""
    return job_submit_script(_TEMPLATE.read_text(encoding="utf-8"))
