"""`sexplsched doctor`: what is installed, reachable and permitted, and what to do about what is not."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import click
from msgspec import to_builtins

from explsched import spool as spools
from explsched.cli import config_option, json_option
from explsched.errors import ExplschedError
from explsched.tables import Column, lines, room
from sched_policy import catalog
from slurm_plugin import config as configuration
from slurm_plugin import sighting
from slurm_plugin.cli import doctor_slurm
from slurm_plugin.cli.doctor_slurm import Finding
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.protocol import probe_pyslurm
from slurm_plugin.daemon_user import may_be_daemons
from slurm_plugin.observation import sweep_record
from wrappers import kernel_manager, mps

_EXAMPLES = """\b
example:
  sexplsched doctor --json
"""
_BUILD = "install explsched again where a C++ compiler is, on Linux; see docs/kernels.md#installation"
_USER = "explsched"
_FORMER_SPOOL_MODE = 0o1777
MADE_AT_START = (Path("/var/log/explsched"), Path("/var/lib/explsched"))  # LogsDirectory=, StateDirectory= of the unit
MANY_FILES = 50_000
_ON_PATH = "apt-get install slurm-client, or name its place: PATH here, and in /etc/default/sexplschedd for the service"
_TOOLS = ("squeue", "scontrol", "scancel", "sprio", "sdiag", "sbatch")


@click.command(epilog=_EXAMPLES)
@json_option
@config_option
def doctor(as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  click passes by name
    """Check the installation. Exit status 1 if something must be fixed."""
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
    files: Iterator[Finding] = iter(())  # which they are, only the file tells
    try:
        config = configuration.load(config_path)
        files = _files(config)
        path = configuration.find(config_path)
        yield Finding("configuration", "ok", str(path) if path else "no file, the defaults are used")
    except ExplschedError as error:
        yield Finding("configuration", "fault", str(error), "mend the file, then: sexplsched config check")
    yield from _tools()
    yield from doctor_slurm.findings(CliClient(config.slurm.timeout_s), config, _level(config.progress.spool))
    yield _pyslurm(config.slurm.client)
    yield from files
    yield from sharing(os.environ)
    for one in (*catalog.POLICIES.foreign(), *catalog.STRATEGIES.foreign()):
        what, advice = f"{one.what} {one.name!r} of package {one.package!r}", f"pip uninstall {one.package}"
        yield (
            Finding("plugin", "note", f"{what}: {one.fault}", f"mend or remove the package: {advice}")
            if one.fault
            else Finding("plugin", "ok", what)
        )


def _files(config: configuration.Config) -> Iterator[Finding]:
    """The files that the configuration names."""
    spool = config.progress.spool
    refused = _level(spool)
    yield _spool(spool)
    yield from _old_reports(spool)
    yield from _sweep_record(spool)
    for what, directory, without in (
        ("audit file", config.audit.file.parent, "changes in Slurm are not written down"),
        ("site factor file", config.order.site_factor_file.parent, "a restarted daemon takes its own for others'"),
        ("state", config.state.directory, "status and explain ask Slurm, and web shows nothing"),
    ):
        if directory in MADE_AT_START and not directory.exists() and sighting.last_heartbeat(spool) is None:
            yield Finding(what, "ok", f"{directory}: the service makes it when it starts")
        else:
            yield _written(what, directory, without, refused)
    yield _daemon(spool)


def _level(spool: Path) -> str:
    """That of what whoever asks may not do: the daemon's user must be able to, anybody else need not."""
    user = _daemons_user(spool)
    return "fault" if user is not None and user.pw_uid == os.geteuid() else "note"


def _pyslurm(client: str) -> Finding:
    fault = probe_pyslurm()
    if fault is None:
        return Finding("pyslurm", "ok", "works")
    if client == "pyslurm":
        found = f"slurm.client is pyslurm, which does not work, so the daemon does not start: {fault}"
        return Finding("pyslurm", "fault", found, "set slurm.client to auto or cli, or install pyslurm for this Slurm")
    return Finding("pyslurm", "note", f"not used: {fault}", "not needed: the s* commands serve")


def _tools() -> Iterator[Finding]:
    for tool in _TOOLS:
        path = shutil.which(tool)
        if path is None:
            yield Finding(tool, "fault", "not on PATH", _ON_PATH)
        else:
            yield Finding(tool, "ok", path)


def sharing(environment: Mapping[str, str]) -> Iterator[Finding]:
    """What jobs would find here that share a GPU, by the functions that `sxrun` uses."""
    try:
        library = kernel_manager.library(environment)
        fault = kernel_manager.preload_fault(library, environment)
        level, found = ("note", f"{library}: {fault}") if fault else ("ok", str(library))
        yield Finding("interposer", level, found, _BUILD if fault else "")
    except kernel_manager.NotInstalledError as error:
        yield Finding("interposer", "note", str(error), _BUILD)
    try:
        running = kernel_manager.answering(environment)
        found = f"{kernel_manager.manager(environment)}{f', one listens at {running}' if running else ''}"
        yield Finding("kernel manager", "ok", found)
    except kernel_manager.NotInstalledError as error:
        yield Finding("kernel manager", "note", str(error), _BUILD)
    try:
        running = mps.answering(environment)
        found = f"{mps.control(environment)}{f', a daemon serves {running}' if running else ''}"
        yield Finding("CUDA MPS", "ok", found)
    except mps.MpsError as error:
        yield Finding("CUDA MPS", "note", str(error), "look again on a GPU node")


def _daemon(spool: Path) -> Finding:
    seen = sighting.last_heartbeat(spool)
    if seen is None and (fault := sighting.file_system_fault(spool)):
        return Finding(
            "daemon", "note", f"no heartbeat in {spool}: {fault}", "whether one runs: systemctl status sexplschedd"
        )
    if seen is None:
        return Finding("daemon", "note", f"no heartbeat in {spool}", "systemctl enable --now sexplschedd")
    where = f"on {seen.holder.host}, pid {seen.holder.pid}"
    if not seen.is_alive(now_s := time.time()):  # one that is stopped removes its heartbeat
        found = f"ended or hangs {where}: its last heartbeat is {seen.age(now_s)}"
        return Finding("daemon", "fault", found, "journalctl -u sexplschedd there, then: systemctl restart sexplschedd")
    return Finding("daemon", "ok", f"runs {where}")


def _written(what: str, directory: Path, without: str, refused: str) -> Finding:
    """Whether what the daemon writes has a directory. One that may be made below its parent is made by the daemon."""
    place = directory.parent if what == "state" and sighting.directory_fault(directory) else directory
    if fault := sighting.directory_fault(place):
        advice = f"install -d -o explsched -g explsched {directory}"
    elif fault := _unwritable(place):
        advice = "the daemon must be able to write there; look as its user: runuser -u explsched -- sexplsched doctor"
    else:
        return Finding(what, "ok", str(directory))
    return Finding(what, refused, f"{directory}: {fault}: {without}", advice)


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
    cannot = "jobs cannot report progress until it can be written"
    if fault := sighting.file_system_fault(path):  # first: what is said of modes could not be done
        return Finding(what, "fault", f"{path}: {fault}", cannot)
    if mode == _FORMER_SPOOL_MODE:
        return Finding(what, "note", f"{path}: mode {mode:04o}, so users can read each other's progress", advice)
    if mode != spools.MODE:
        return Finding(what, "note", f"{path}: mode {mode:04o}, so users' jobs may not report", advice)
    if fault := _unwritable(path):
        return Finding(what, "fault", f"{path}: {fault}", cannot)
    if finding := _foreign_group(what, path, advice):
        return finding
    name = sighting.group_name(status.st_gid)
    if members := _members(status.st_gid):
        found = f"{path}: group {name} has members ({', '.join(members)}), who can read everybody's progress"
        return Finding(what, "note", found, f"give it the daemon's group, which nobody else is in: {advice}")
    return Finding(what, "ok", f"{path}, readable for group {name}")


def _foreign_group(what: str, path: Path, advice: str) -> Finding | None:
    """What is wrong if the daemon's user is not in the spool's group: that of one that runs, else `_USER`.

    Where there is none of these it may be whoever asks, and is a note.
    """
    if (entry := _daemons_user(path)) is None:
        level, uid, groups = "note", os.geteuid(), [os.getegid(), *os.getgroups()]
    else:
        level, uid, groups = "fault", entry.pw_uid, os.getgrouplist(entry.pw_name, entry.pw_gid)
    fault = sighting.group_fault(path, uid, groups)
    return Finding(what, level, f"{path}: {fault}", f"the spool must have its group: {advice}") if fault else None


def _daemons_user(spool: Path) -> pwd.struct_passwd | None:
    """That of a daemon that runs, else `_USER`, if there is one."""
    seen = sighting.last_heartbeat(spool)
    try:
        return pwd.getpwuid(seen.uid) if seen and seen.is_alive(time.time()) else pwd.getpwnam(_USER)
    except KeyError:
        return None


def _old_reports(spool: Path) -> Iterator[Finding]:
    """Of which users each pass lists very many files, as nobody removes old ones, as far as whoever asks may see."""
    try:
        descriptor = os.open(spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return  # which `_spool` tells
    try:
        for name, _uid in spools.directories(descriptor):
            if _has_many_files(name, descriptor):
                found = f"{spool / name}: more than {MANY_FILES:,} files, which each pass lists"
                remove = f"find {shlex.quote(str(spool))} -name '[0-9]*.jsonl' -mtime +30 -delete"
                advice = f"{remove}; if most are younger, with fewer days, but more than any job or search takes"
                yield Finding("old reports", "note", found, advice)
    finally:
        os.close(descriptor)


def _has_many_files(name: str, spool: int) -> bool:
    try:
        directory = spools.open_directory(name, spool)
    except OSError:
        return False
    try:
        with os.scandir(directory) as entries:
            return sum(1 for _ in islice(entries, MANY_FILES + 1)) > MANY_FILES
    finally:
        os.close(directory)


def _sweep_record(spool: Path) -> Iterator[Finding]:
    """A record of sweeps that the daemon cannot write to: root's, of an earlier release, or put there by another."""
    path, user = spool / sweep_record.NAME, _daemons_user(spool)
    try:
        uid = path.lstat().st_uid
    except OSError:
        return
    if user is not None and uid != user.pw_uid and not (user.pw_uid == 0 and may_be_daemons(uid, spool.stat())):
        found = f"{path} is of uid {uid}, and the daemon's user is {user.pw_name}: sweeps are not recorded"
        yield Finding("sweep record", "fault", found, f"chown {user.pw_name} {path}")


def _members(gid: int) -> Sequence[str]:
    """Who is in a group besides the daemon's user."""
    try:
        found = grp.getgrgid(gid)
    except KeyError:
        return ()
    return [member for member in found.gr_mem if member not in (_USER, found.gr_name)]


def _unwritable(directory: Path) -> str:
    """Why whoever asks cannot write there; "" if nothing is known against it."""
    if fault := sighting.file_system_fault(directory):
        return fault
    return "" if os.access(directory, os.W_OK) else f"user {os.geteuid()} may not write there"
