"""The gateway's directory on its node's own disk, for sockets and HAProxy's files."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

from explsched import log
from inference_gateway.errors import GatewayError

_LOG = logging.getLogger("explsched.gateway")


def private(name: str, job_id: int | None) -> Path:
    """Make it if it is not there; the same after a restart.

    Raises `GatewayError` if somebody else has made it.
    """
    path = Path(tempfile.gettempdir()) / f"explsched-gateway-{os.getuid()}-{name}-{job_id or 'local'}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise GatewayError(f"{path}: must be a directory of uid {os.getuid()} with mode 700, is not; remove it")
    return path


def clean_up(path: Path, access_log: Path, kept_log: Path) -> None:
    """Remove it; its access log is added to the one that is kept. Without a request there is none."""
    try:
        if access_log.exists():
            with access_log.open("rb") as source, kept_log.open("ab") as target:
                shutil.copyfileobj(source, target)
        shutil.rmtree(path)
    except OSError as error:
        log.event(_LOG, logging.ERROR, "not cleaned up", file=str(error.filename), why=error.strerror or "")
