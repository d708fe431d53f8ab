"""explsched on a cluster, all in one directory: spool, configuration, daemon, and what jobs and commands must know.

`sexplsched cluster up` puts it beside Slurm; tests and benchmarks run it with settings of their own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import yaml
from msgspec import Struct

from explsched import spool as spools
from slurm_plugin import config, instance

DAEMON = "sexplschedd"
"""The daemon's name among those of a cluster."""

SPOOL_VARIABLE = "EXPLSCHED_SPOOL"
"""Names the spool for jobs, see `explsched.progress`."""

_TO_STOP_S = 60.0


class Product(Struct, frozen=True):
    """The product's files, all below `directory`."""

    directory: Path

    SETTINGS: ClassVar[Mapping[str, object]] = {"interval_s": 5.0, "utility": {"quantum_s": 60.0}}
    """explsched.yaml of a private cluster, but for its paths: shorter times than a site's, for trying out."""

    @property
    def config(self) -> Path:
        """explsched.yaml."""
        return self.directory / "explsched.yaml"

    @property
    def spool(self) -> Path:
        """Where jobs report their progress."""
        return self.directory / "progress"

    @property
    def task_prolog(self) -> Path:
        """What slurmd asks before each task: it gives jobs the spool, whatever their environment."""
        return self.directory / "task_prolog"

    @property
    def log(self) -> Path:
        """Log of a daemon that `daemon` started."""
        return self.directory / "sexplschedd.log"

    def install(self, settings: Mapping[str, object] = SETTINGS) -> None:
        """Make the directory, the spool and the files. `settings` are those of explsched.yaml, without the spool."""
        for path, mode in ((self.directory, 0o755), (self.spool, spools.MODE)):
            path.mkdir()
            path.chmod(mode)  # whatever the umask: jobs of ordinary users report here
        self.configure(settings)
        self.task_prolog.write_text(
            "#!/bin/sh\n"
            f'[ -n "${SPOOL_VARIABLE}" ] || echo "export {SPOOL_VARIABLE}={self.spool}"\n'
            f'[ -n "${config.PATH_VARIABLE}" ] || echo "export {config.PATH_VARIABLE}={self.config}"\n',
            encoding="utf-8",
        )
        self.task_prolog.chmod(0o755)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Write explsched.yaml anew; a running daemon takes it at SIGHUP."""
        own = {
            "progress": {"spool": str(self.spool)},
            "order": {"site_factor_file": str(self.directory / "site_factors.json")},
            "audit": {"file": str(self.directory / "audit.jsonl")},
            "state": {"directory": str(self.directory / "state"), "socket": str(self.directory / "state.sock")},
        }
        chosen = {name: section for name, section in settings.items() if isinstance(section, Mapping)}
        sections = {name: {**chosen.get(name, {}), **section} for name, section in own.items()}
        text = yaml.safe_dump({**settings, **sections}, sort_keys=False)
        self.config.write_text(text, encoding="utf-8")
        self.config.chmod(0o644)

    def env(self) -> dict[str, str]:
        """What to add to an environment so that commands and jobs find the product."""
        return {config.PATH_VARIABLE: str(self.config), SPOOL_VARIABLE: str(self.spool)}

    def daemon_argv(self) -> Sequence[str]:
        """The command that runs the daemon."""
        return (sys.executable, "-m", "slurm_plugin.daemon", "--config", str(self.config))

    def daemon_works(self) -> bool:
        """Whether a daemon has claimed the cluster."""
        return instance.last_heartbeat(self.spool) is not None

    @contextmanager
    def daemon(self, environment: Mapping[str, str], niceness: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        """The real daemon for as long as the block lasts. It logs to `log`.

        `environment` says how Slurm is reached: `Cluster.env`. systemd's unit gives the daemon a niceness of 10.
        """
        argv = ["nice", f"--adjustment={niceness}", *self.daemon_argv()]
        with self.log.open("ab") as output:
            process = subprocess.Popen(argv, env=dict(environment), stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=_TO_STOP_S)
