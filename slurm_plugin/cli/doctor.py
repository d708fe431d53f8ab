"""`sexplsched doctor`: what is installed, reachable and permitted, and what to do about what is not."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from msgspec import to_builtins

from explsched import spool as spools
from explsched.cli.options import config_option, json_option
from explsched.cli.tables import Column, lines, room
from explsched.errors import ExplschedError
from sched_policy import catalog
from slurm_plugin import config as configuration
from slurm_plugin.cli.slurm_findings import Finding, plain_sbatch, slurm
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.protocol import probe_pyslurm
from slurm_plugin.instance import heartbeat
from wrappers import kernel_manager, mps, native_parts

_EXAMPLES = """\b
example:
  sexplsched doctor --json
"""
_BUILD = "install explsched again with a C++ compiler, on Linux: pip install --force-reinstall --no-deps explsched"
_FORMER_SPOOL_MODE = 0o1777
_TOOLS = ("squeue", "scontrol", "scancel", "sprio", "sdiag", "sbatch")


@click.command(epilog=_EXAMPLES)
@json_option
@config_option
def doctor(as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  click passes by name
    """Check the installation. Exit status 1 if something must be mended."""
    findings = list(_findings(config_path))
    if as_json:
        click.echo(json.dumps([to_builtins(finding) for finding in findings], indent=1))
    else:
        rows = [row for finding in findings for row in _rows(finding)]
        click.echo("\n".join(lines((Column("LEVEL"), Column("CHECK"), Column("FOUND")), rows, room(), heading=False)))
    sys.exit(1 if any(finding.level == "fault" for finding in findings) else 0)


def _rows(finding: Finding) -> Iterator[tuple[str, str, str]]:
    yield finding.level, finding.check, finding.found
    if finding.advice:
        yield "", "", f"-> {finding.advice}"


def _findings(config_path: Path | None) -> Iterator[Finding]:
    config = configuration.Config()
    try:
        config = configuration.load(config_path)
        path = configuration.find(config_path)
        yield Finding("configuration", "ok", str(path) if path else "no file, the defaults hold")
    except ExplschedError as error:
        yield Finding("configuration", "fault", str(error), "mend the file, then: sexplsched config check")
    yield from _tools()
    yield from slurm(CliClient(config.slurm.timeout_s), config)
    fault = probe_pyslurm()
    yield (
        Finding("pyslurm", "ok", "works")
        if fault is None
        else Finding("pyslurm", "note", f"not used: {fault}", "not needed: the s* commands serve")
    )
    yield _spool(config.progress.spool)
    yield _daemon(config.progress.spool)
    yield from plain_sbatch(os.environ)
    yield from sharing(os.environ)
    for entry in catalog.registered_by_others():
        package = catalog.package(entry)
        fault, advice = catalog.fault(entry), f"mend or remove the package: pip uninstall {package}"
        what = f"policy {entry.name!r} of package {package!r}"
        yield Finding("plugin", "note", f"{what}: {fault}", advice) if fault else Finding("plugin", "ok", what)


def _tools() -> Iterator[Finding]:
    for tool in _TOOLS:
        path = shutil.which(tool)
        if path is None:
            yield Finding(tool, "fault", "not on PATH", "apt-get install slurm-client")
        else:
            yield Finding(tool, "ok", path)


def sharing(environment: Mapping[str, str]) -> Iterator[Finding]:
    """What jobs would find here that share a GPU, by the functions that `sxrun` uses."""
    try:
        library = native_parts.library(environment)
        fault = native_parts.preload_fault(library, environment)
        level, found = ("note", f"{library}: {fault}") if fault else ("ok", str(library))
        yield Finding("interposer", level, found, _BUILD if fault else "")
    except native_parts.NotInstalledError as error:
        yield Finding("interposer", "note", str(error), _BUILD)
    try:
        running = kernel_manager.answering(environment)
        found = f"{native_parts.manager(environment)}{f', one listens at {running}' if running else ''}"
        yield Finding("kernel manager", "ok", found)
    except native_parts.NotInstalledError as error:
        yield Finding("kernel manager", "note", str(error), _BUILD)
    try:
        running = mps.answering(environment)
        found = f"{mps.control(environment)}{f', a daemon serves {running}' if running else ''}"
        yield Finding("CUDA MPS", "ok", found)
    except mps.MpsError as error:
        yield Finding("CUDA MPS", "note", str(error), "look again on a GPU node")


def _daemon(spool: Path) -> Finding:
    seen = heartbeat.last(spool)
    if seen is None:
        return Finding("daemon", "note", f"no heartbeat in {spool}", "systemctl enable --now sexplschedd")
    where = f"on {seen.holder.host}, pid {seen.holder.pid}"
    if not seen.is_alive(time.time()):
        return Finding("daemon", "note", f"ended or hangs {where}", "see its log")
    return Finding("daemon", "ok", f"runs {where}")


def _spool(path: Path) -> Finding:
    what = "progress spool"
    advice = f"install -d -m {spools.MODE:o} -g explsched {path}"
    try:
        status = path.stat()
    except OSError as error:
        return Finding(what, "fault", f"{path}: {error.strerror}", advice)
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        return Finding(what, "fault", f"{path}: is not a directory", advice)
    if mode == _FORMER_SPOOL_MODE:
        return Finding(what, "note", f"{path}: mode {mode:04o}, so users can read each other's progress", advice)
    if mode != spools.MODE:
        return Finding(what, "note", f"{path}: mode {mode:04o}, so users' jobs may not report", advice)
    return Finding(what, "ok", f"{path}, readable for group {status.st_gid}")
