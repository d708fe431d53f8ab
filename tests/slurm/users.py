"""Acting as other users: the daemon's own, which is an administrator, and an ordinary one."""

from __future__ import annotations

import os
import pickle
import pwd
import traceback
from collections.abc import Callable
from typing import TypeVar

from slurm_plugin.devcluster import Cluster
from tests.slurm.jobs import run

STEERS, OPERATOR, ORDINARY = "games", "man", "news"  # users of every Debian system
_Answer = TypeVar("_Answer")


def add_users(cluster: Cluster) -> None:
    """Tell slurmdbd of all."""
    run(cluster, "sacctmgr", "--immediate", "add", "account", "lab")
    run(cluster, "sacctmgr", "--immediate", "add", "user", ORDINARY, "account=lab")
    run(cluster, "sacctmgr", "--immediate", "add", "user", STEERS, "account=lab", "AdminLevel=Admin")
    run(cluster, "sacctmgr", "--immediate", "add", "user", OPERATOR, "account=lab", "AdminLevel=Operator")


def as_user(name: str, call: Callable[[], _Answer]) -> _Answer:
    """What the call returns in a process of that user. Forked, because the user may not read our source files."""
    account = pwd.getpwnam(name)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            os.write(writer, pickle.dumps(call()))
        except Exception:
            traceback.print_exc()  # nobody else would tell why
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer, f"the call failed as {name}"
    found: _Answer = pickle.loads(answer)  # noqa: S301  our own child wrote it
    return found
