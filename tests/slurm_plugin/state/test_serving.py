"""The socket on which users are sent what they may see."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import pwd
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import yaml
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from click.testing import CliRunner
from msgspec.structs import replace

from explsched.cli import root
from slurm_plugin.config import StateSection
from slurm_plugin.devcluster.machine import until
from slurm_plugin.state import serving
from slurm_plugin.state.published import FILE, PROGRESS, ask, decoded
from slurm_plugin.state.serving import Visible
from slurm_plugin.web.server import Access, Page
from tests.slurm_plugin.state import JOBS, configured, published

NOBODY = pwd.getpwnam("nobody")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
ASK = """\
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
sys.stdout.buffer.write(connection.makefile("rb").read())
"""


@pytest.fixture
def here(open_tmp: Path) -> Path:
    """A directory of this test that other users can reach."""
    path = Path(tempfile.mkdtemp(dir=open_tmp))
    path.chmod(0o755)
    return path


@contextmanager
def a_server(here: Path) -> Iterator[Path]:
    path = here / "state.sock"
    process = subprocess.Popen(serving.argv(here / "state", path))
    try:
        until(lambda: path.exists() and stat.S_IMODE(path.stat().st_mode) == 0o666, "it serves all users")
        yield path
    finally:
        process.terminate()
        process.wait(timeout=30)


def as_nobody(path: Path) -> bytes:
    """What the socket sends to another user."""
    argv = ["/usr/bin/python3", "-c", ASK, str(path)]  # ours may lie where others cannot go
    return subprocess.run(argv, user=NOBODY.pw_uid, group=NOBODY.pw_gid, capture_output=True, check=True).stdout


@needs_root
@pytest.mark.parametrize("hidden", [(), (PROGRESS,), ("jobs", PROGRESS)])
def test_each_user_is_sent_what_he_may_see(here: Path, hidden: tuple[str, ...]) -> None:
    jobs = (*JOBS[:2], replace(JOBS[2], user="nobody"))
    state = published(here, *hidden, jobs=jobs, now_s=time.time())
    with a_server(here) as path:
        assert decoded(as_nobody(path)) == Visible(state).of("nobody")
        assert ask(path) == state, "root sees all"
        if "jobs" in hidden:
            assert {row.jobid for row in Visible(state).of("nobody").jobs} == {43}
        later = published(here, *hidden, jobs=jobs, now_s=time.time())
        assert decoded(as_nobody(path)) == Visible(later).of("nobody")


def test_what_many_users_were_sent_is_not_kept_beyond_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100,000 jobs it was 50 MB for each of 32 users."""
    _ = published(tmp_path, PROGRESS)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=f"user{uid}"))
    size = len(serving.StateServer(tmp_path / "state").state_for(1000))
    server = serving.StateServer(tmp_path / "state", most_bytes=5 * size // 2)
    kept = []
    for uid in range(1001, 1006):
        assert server.state_for(uid)
        kept.append(server.remembered_bytes // size)
    assert kept == [1, 2, 1, 2, 1]


def test_status_of_a_user_who_may_not_read_the_file_asks_nobody_else(here: Path) -> None:
    _ = published(here, "jobs", now_s=time.time())
    (here / "state").rename(here / "elsewhere")
    (here / "state").symlink_to(here / "elsewhere")
    config = here / "explsched.yaml"
    with a_server(here) as path:
        sections = {"state": {"directory": str(here / "none"), "socket": str(path)}}
        config.write_text(yaml.safe_dump({**sections, "progress": {"spool": str(here / "spool")}}))
        environment = {"PATH": "/nowhere"}
        found = CliRunner().invoke(root, ["status", "--json", "-f", str(config)], env=environment)
        assert {row["jobid"] for row in json.loads(found.stdout)["jobs"]} == {41, 42, 43}
    gone = CliRunner().invoke(root, ["status", "-f", str(config)], env=environment)
    assert "is not installed" in str(gone.exception), "without a server Slurm is asked"


def test_the_page_of_a_user_who_may_not_read_the_file_shows_his_own_part(here: Path) -> None:
    """A file that is no state stands for one that may not be read, as root may read any."""
    _ = published(here, PROGRESS)
    elsewhere = here / "login"
    elsewhere.mkdir()
    config = configured(elsewhere)
    (elsewhere / "state").mkdir()
    (elsewhere / "state" / FILE).write_bytes(b"")
    page = Page(replace(config, state=StateSection(elsewhere / "state", socket=here / "state.sock")), Access("t"))

    async def status() -> int:
        async with (
            TestServer(page.app()) as server,
            ClientSession(cookies={Access("t").cookie: "t"}) as client,
            client.get(server.make_url("/api/jobs")) as response,
        ):
            return response.status

    assert asyncio.run(status()) == 503
    (elsewhere / "state" / FILE).write_bytes(b" ")  # as the next pass does
    with a_server(here):
        assert asyncio.run(status()) == 200


def test_readers_that_do_not_read_keep_nobody_waiting(here: Path) -> None:
    state = published(here, now_s=time.time())
    with a_server(here) as path:
        idle = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
        for one in idle:
            one.connect(str(path))
        assert ask(path) == state
        for one in idle:
            one.close()


def test_a_user_has_a_few_connections_at_a_time(here: Path) -> None:
    _ = published(here, now_s=time.time())
    file = here / "state" / "state.json"
    told = json.loads(file.read_text())
    told["changes"] = [{"jobid": None, "text": "x" * 8_000_000}]  # more than a socket takes without a reader
    file.write_text(json.dumps(told))
    with a_server(here) as path:
        idle = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
        for one in idle:
            one.connect(str(path))
        until(lambda: ask(path) is None, "the fifth connection is refused")
        for one in idle:
            one.close()
        until(lambda: ask(path) is not None, "there is room again")


def test_a_socket_that_somebody_else_made_is_not_believed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ = published(here, now_s=time.time())
    with a_server(here) as path:
        monkeypatch.setattr("slurm_plugin.state.published.peer", lambda _connection: 4711)
        assert ask(path) is None


def test_it_ends_with_the_daemon_and_is_started_again_when_it_dies(here: Path) -> None:
    _ = published(here, now_s=time.time())
    path = here / "state.sock"
    beside = serving.ServerProcess(here / "state", path)
    beside.keep()
    until(lambda: ask(path) is not None, "it serves")
    first = beside.pid
    os.kill(first, 9)

    def again() -> bool:
        beside.keep()
        return beside.pid != first and ask(path) is not None

    until(again, "another one serves")
    beside.end()
    assert not path.exists()


def test_a_server_that_cannot_start_is_tried_more_and_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    def start(*argv: object, **_: object) -> SimpleNamespace:
        starts.append(argv)
        return SimpleNamespace(poll=lambda: 1, wait=lambda _: 1, returncode=1, stdin=io.BytesIO())

    monkeypatch.setattr("subprocess.Popen", start)
    beside = serving.ServerProcess(tmp_path, tmp_path / "nowhere" / "state.sock")
    counts = []
    for _ in range(40):
        beside.keep()
        counts.append(len(starts))
    assert [counts.index(number) for number in range(1, counts[-1] + 1)] == [0, 1, 3, 6, 11, 20, 37]


def test_a_server_that_does_not_end_is_killed(here: Path) -> None:
    _ = published(here, now_s=time.time())
    beside = serving.ServerProcess(here / "state", here / "state.sock", patience_s=0.2)
    beside.keep()
    until(lambda: ask(beside.path) is not None, "it serves")
    pid = beside.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    beside.end()
    assert not Path(f"/proc/{pid}").exists()
    beside.keep()  # on the socket that the killed one left
    until(lambda: ask(beside.path) is not None, "the next one serves")
    beside.end()


def test_two_do_not_serve_one_socket(here: Path) -> None:
    with a_server(here) as path:
        done = subprocess.run(serving.argv(here, path), capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "another process serves it" in done.stderr


def test_a_file_that_is_no_socket_is_kept(tmp_path: Path) -> None:
    """A mistake in `state.socket` deleted the audit file."""
    path = tmp_path / "audit.jsonl"
    path.write_text("precious")
    with pytest.raises(serving.ServingError, match="is no socket"):
        serving.bound(path)
    assert path.read_text() == "precious"


def test_a_socket_that_cannot_be_removed_keeps_the_server_from_no_orderly_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with a traceback where the file system was read-only by then."""

    def is_read_only(path: Path, **_: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    async def served() -> None:
        serves = asyncio.create_task(serving.serve(tmp_path, tmp_path / "state.sock"))
        while not (tmp_path / "state.sock").is_socket():
            await asyncio.sleep(0)
        monkeypatch.setattr(Path, "unlink", is_read_only)
        os.kill(os.getpid(), signal.SIGTERM)
        await serves

    asyncio.run(served())
