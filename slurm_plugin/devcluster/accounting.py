"""Starts the accounting of a private cluster: MariaDB and slurmdbd, with which sacct and GPU accounting work.

The database listens on a unix socket in a directory of root's and knows root by the socket's credentials: no password
to keep, and no way for other users of the host to reach a database server that runs as root.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from slurm_plugin.devcluster import machine
from slurm_plugin.devcluster.cluster import Layout
from slurm_plugin.devcluster.configuration import DATABASE, Host, Ports, slurmdbd_conf
from slurm_plugin.devcluster.machine import DevClusterError

ACCOUNT = "explsched"
"""The account whose users are root and daemon.

Not nobody, the usual stranger: newer Slurms (seen: 25.11) know the name as no user, and give its jobs no account.
"""


class Launcher(Protocol):
    """Starts daemons and waits for them, failing with the end of their log."""

    environment: Mapping[str, str]

    def start(self, name: str, *argv: str) -> None:
        """Start a daemon and record it."""

    def wait_for(self, name: str, ready: Callable[[], bool]) -> None:
        """Return when `ready` does; raises `DevClusterError` if a daemon ends or time runs out."""


def start_accounting(layout: Layout, ports: Ports, host: Host, launcher: Launcher) -> None:
    """Start both daemons and register the cluster, an account and its users. Raises `DevClusterError`."""
    data, temporary = layout.database / "data", layout.database / "tmp"
    database_socket = database_socket_path(layout)
    layout.database.mkdir(mode=0o700)
    data.mkdir()
    # Its own: a starting MariaDB removes every temporary table in its tmpdir, and another server's would be among them.
    temporary.mkdir()
    _run(
        launcher.environment,
        machine.find("mariadb-install-db"),
        "--no-defaults",
        f"--datadir={data}",
        f"--tmpdir={temporary}",
        "--user=root",
        "--auth-root-authentication-method=socket",
        "--auth-root-socket-user=root",
        "--skip-test-db",
    )
    # There before slurmdbd asks for it: with MariaDB's client library 3.4.10 a connection made after a failed one takes
    # no results, and slurmdbd gives up.
    first = layout.slurm_conf.with_name("database.sql")
    first.write_text(f"CREATE DATABASE {DATABASE};\n", encoding="utf-8")
    launcher.start(
        "mariadbd",
        machine.find("mariadbd"),
        "--no-defaults",
        "--user=root",
        f"--datadir={data}",
        f"--tmpdir={temporary}",
        f"--socket={database_socket}",
        "--skip-networking",
        f"--pid-file={layout.root}/run/mariadb.pid",
        f"--init-file={first}",
        "--innodb-buffer-pool-size=64M",  # slurmdbd refuses to start with the tiny defaults of older servers
        "--innodb-log-file-size=16M",
        "--innodb-lock-wait-timeout=900",  # the value Slurm's documentation asks for
        "--innodb-flush-log-at-trx-commit=2",
    )
    launcher.wait_for("mariadbd", lambda: _accepts(database_socket))
    conf = layout.slurm_conf.with_name("slurmdbd.conf")
    conf.write_text(slurmdbd_conf(layout, ports, host), encoding="utf-8")
    conf.chmod(0o600)  # slurmdbd insists
    launcher.start("slurmdbd", machine.find("slurmdbd"), "-D")
    launcher.wait_for("slurmdbd", lambda: _listens(ports.slurmdbd))
    for what in (
        ("cluster", layout.cluster_name),
        ("account", ACCOUNT, f"cluster={layout.cluster_name}"),
        ("user", "root", f"account={ACCOUNT}", "adminlevel=admin"),
        ("user", "daemon", f"account={ACCOUNT}"),
    ):
        _run(launcher.environment, machine.find("sacctmgr"), "-i", "add", *what)


def database_socket_path(layout: Layout) -> Path:
    """Where MariaDB listens. slurmdbd has no setting for it and takes it from MYSQL_UNIX_PORT."""
    return layout.database / "mariadb.socket"


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _run(environment: Mapping[str, str], *argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    # sacctmgr says 1 and "Nothing new added" for what is there already, such as user root.
    if done.returncode and "Nothing new added" not in done.stdout:
        raise DevClusterError(f"{argv[0]} failed: {(done.stderr or done.stdout).strip()}")
