"""Whose cluster's a directory of the daemon is.

What a daemon keeps there is by the numbers of jobs, which each cluster counts by itself, and outlives it. So a file
names their cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from explsched.atomic_file import create_file_durably
from explsched.log import event
from slurm_plugin.client.process import BoundedCall
from slurm_plugin.instance.holder import AnotherDaemonError

CLAIM = "explsched-cluster"
"""The file that says whose directory it is."""

_LOG = logging.getLogger("explsched.instance")
_PATIENCE_S = 10.0
_MOST_BYTES = 4096


class Claim:
    """A directory that shall be our cluster's alone; `key` names it in the configuration.

    `cluster` is the name alone, which stays if slurmctld moves.
    """

    def __init__(self, directory: Path, cluster: str, key: str) -> None:
        self._directory = directory
        self._cluster = cluster
        self._key = key
        self._found = ""
        self._fault = ""
        self._call = BoundedCall(_PATIENCE_S)

    def is_made(self) -> bool:
        """Write down whose directory it is, if nobody has. Raises `AnotherDaemonError` if it is another cluster's.

        False, to be asked again, if it is not there or cannot be claimed. The latter keeps no daemon from its work:
        that is logged, once per fault.
        """
        return self._is_found(self._make)

    def check(self) -> None:
        """Raise `AnotherDaemonError` if it is another cluster's; nothing is written down."""
        self._is_found(self._look)

    def _is_found(self, look: Callable[[], None]) -> bool:
        try:
            fault = "" if self._call.run(look) else f"no answer for {self._call.patience_s:g} s"
        except OSError as error:
            fault = error.strerror or str(error)
        if fault not in ("", self._fault):
            why = f"{self._directory}: {fault}"
            event(_LOG, logging.WARNING, "directory not claimed for this cluster", key=self._key, why=why)
        self._fault = fault
        if not fault and self._found not in ("", self._cluster):
            raise AnotherDaemonError(
                f"{self._directory}: belongs to cluster {self._found}, and this is {self._cluster}; set {self._key} of "
                "each cluster to a directory of its own. If only the name has changed, remove "
                f"{self._directory / CLAIM}"
            )
        return not fault and self._found != ""

    def _look(self) -> None:
        self._found = claimed_by(self._directory)

    def _make(self) -> None:
        self._look()
        if not self._found and self._directory.exists():
            with suppress(FileExistsError):  # another daemon has come first
                create_file_durably(self._directory / CLAIM, f"{self._cluster}\n", mode=0o644)
            self._look()


def claimed_by(directory: Path) -> str:
    """The name of the cluster whose directory it is; "" if none is written down. Raises `OSError`."""
    try:
        return (directory / CLAIM).read_bytes()[:_MOST_BYTES].decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
