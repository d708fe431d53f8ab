"""Picks the adapter."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Literal

from explsched.log import event
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.errors import SlurmError
from slurm_plugin.client.protocol import SlurmClient

_LOG = logging.getLogger("explsched.slurm")
_PROBE_S = 20.0


def choose(kind: Literal["auto", "pyslurm", "cli"], timeout_s: float) -> SlurmClient:
    """The adapter of that name; `auto` takes pyslurm where it works and the commands elsewhere.

    Raises `SlurmError` if pyslurm is asked for and does not work.
    """
    if kind == "cli":
        return CliClient(timeout_s)
    fault = probe_pyslurm()
    if fault is None:
        from slurm_plugin.client.pyslurm_ import PyslurmClient

        return PyslurmClient(timeout_s)
    if kind == "pyslurm":
        raise SlurmError(f"slurm.client is pyslurm, but pyslurm does not work here: {fault}")
    event(_LOG, logging.INFO, "using the s* commands", why=fault)
    return CliClient(timeout_s)


def probe_pyslurm() -> str | None:
    """Why pyslurm cannot be used, None if it can.

    Tried in a child process: importing pyslurm calls libslurm, which ends its process when Slurm is not set up.
    """
    code = "import pyslurm; pyslurm.Nodes.load()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its import took longer than {_PROBE_S:.0f} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"its import ended the process with status {done.returncode}"
