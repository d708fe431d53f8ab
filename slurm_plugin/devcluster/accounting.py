"""MariaDB and slurmdbd of a private cluster, so that sacct and GPU accounting work."""

from __future__ import annotations

import secrets
import socket
import subprocess
from collections.abc import Callable, Mapping

from slurm_plugin.devcluster import programs
from slurm_plugin.devcluster.slurm_conf import Ports, slurmdbd_conf
from slurm_plugin.devcluster.spec import DevClusterError, Layout


def start_accounting(
    layout: Layout,
    ports: Ports,
    launch: Callable[..., None],
    environment: Mapping[str, str],
    wait_for: Callable[[str, Callable[[], bool]], None],
) -> None:
    """Start both daemons and register the cluster. The database listens on loopback only."""
    data = layout.root / "db"
    database_socket = layout.root / "run" / "mariadb.socket"
    _run(
        environment,
        programs.find("mariadb-install-db"),
        "--no-defaults",
        f"--datadir={data}",
        "--user=root",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
    )
    launch(
        "mariadbd",
        programs.find("mariadbd"),
        "--no-defaults",
        "--user=root",
        f"--datadir={data}",
        f"--socket={database_socket}",
        "--bind-address=127.0.0.1",
        f"--port={ports.mariadb}",
        f"--pid-file={layout.root}/run/mariadb.pid",
        "--innodb-buffer-pool-size=64M",
        "--innodb-lock-wait-timeout=900",
    )
    wait_for("mariadbd", lambda: _listens(ports.mariadb))
    password = secrets.token_hex(16)
    _run(
        environment,
        programs.find("mariadb"),
        "--no-defaults",
        f"--socket={database_socket}",
        "--user=root",
        "--execute",
        "CREATE DATABASE slurm_acct_db;"
        f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';"
        f"CREATE USER slurm@localhost IDENTIFIED BY '{password}';"
        "GRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1'; GRANT ALL ON slurm_acct_db.* TO slurm@localhost",
    )
    conf = layout.slurm_conf.with_name("slurmdbd.conf")
    conf.touch(mode=0o600)
    conf.write_text(slurmdbd_conf(layout, ports, password), encoding="utf-8")
    launch("slurmdbd", programs.find("slurmdbd"), "-D")
    wait_for("slurmdbd", lambda: _listens(ports.slurmdbd))
    for what in (
        ("cluster", layout.cluster_name),
        ("account", "explsched", f"cluster={layout.cluster_name}"),
        ("user", "root", "account=explsched", "adminlevel=admin"),
        ("user", "nobody", "account=explsched"),
    ):
        _run(environment, programs.find("sacctmgr"), "-i", "add", *what)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _run(environment: Mapping[str, str], *argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    # sacctmgr says 1 and "Nothing new added" for what is there already, such as user root.
    if done.returncode and "Nothing new added" not in done.stdout:
        raise DevClusterError(f"{argv[0]} failed: {(done.stderr or done.stdout).strip()}")
