"""Decides which parts of the published state a user may see, and serves them to ordinary users by a Unix socket.

Slurm's `PrivateData` may hide other users' jobs, nodes, partitions and reservations; what a job reports is visible to
its owner only, unless the site allows more. The web page and the socket have many readers, so what is the same for all
of them is computed once.

The kernel says which user connects (SO_PEERCRED), so nothing is read from the connection: each user is sent the visible
state as JSON, and the connection is closed. The daemon runs the server as a process of its own, so that readers do not
slow its passes; on other hosts that see the state's directory, `sexplschedd --serve-state` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pwd
import re
import signal
import socket
import stat
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from explsched import interpreter
from explsched.errors import ExplschedError
from explsched.log import event
from slurm_plugin.state.published import (
    FILE,
    HIDDEN,
    PROGRESS,
    Change,
    Curve,
    Explanation,
    JobRow,
    NodeRow,
    PlanLine,
    State,
    encoded,
    part,
    peer,
    read,
)

_LOG = logging.getLogger("explsched.state")
_MOST_OF_A_USER = 4
_MOST = 128
_MOST_REMEMBERED_BYTES = 256 << 20
_PIECE_BYTES = 256 * 1024
_TO_READ_S = 20.0
_TO_ANSWER_S = 5.0
_OPEN_MODE = 0o666
_WITH_PARENT = "--with-parent"
_NUMBER = re.compile(r"\d+")
_One = TypeVar("_One")


class Visible:
    """A state, and what each user may see of it."""

    def __init__(self, state: State) -> None:
        """Compute what does not depend on the reader."""
        self.state = state
        if not state.private:
            return
        self._explained = part(state.explanations, tuple[Explanation, ...])
        self._owner = {one.jobid: one.user for one in self._explained}
        self._jobs_of: defaultdict[str, set[int]] = defaultdict(set)
        for job_id, user in self._owner.items():
            self._jobs_of[user].add(job_id)
        self._rows = _by_user((row.user, at) for at, row in enumerate(state.jobs))
        self._sentences = _by_user((one.user, at) for at, one in enumerate(self._explained))
        self._curves = _by_user((one.user, one) for one in part(state.curves, tuple[Curve, ...]))
        self._plan = part(state.plan, tuple[PlanLine, ...])
        self._lines = _by_user((self._owner_of(line), at) for at, line in enumerate(self._plan))
        self._changes = part(state.changes, tuple[Change, ...])
        if state.private == (PROGRESS,):
            self._open_rows = [_without_report(row) for row in state.jobs]
            self._open_sentences = [replace(one, sentences=one.sentences[:1]) for one in self._explained]
            self._open_lines = [replace(line, text="") for line in self._plan]

    def of(self, user: str) -> State:
        """What a user may see: everything, everything except what others' jobs report, or only the user's own."""
        if not self.state.private:
            return self.state
        return self._all_jobs(user) if self.state.private == (PROGRESS,) else self._own_jobs(user)

    def _owner_of(self, line: PlanLine) -> str | None:
        """The owner of the jobs in a line of the plan; None if they belong to several users."""
        owners = {self._owner.get(job_id) for job_id in line.jobs}
        return owners.pop() if len(owners) == 1 else None

    def _all_jobs(self, user: str) -> State:
        """All jobs; what they report and what follows from it only for the user's own."""
        lines = _with_own(self._open_lines, self._plan, self._lines.get(user, ()))
        sentences = _with_own(self._open_sentences, self._explained, self._sentences.get(user, ()))
        return replace(
            self.state,
            jobs=tuple(_with_own(self._open_rows, self.state.jobs, self._rows.get(user, ()))),
            explanations=encoded(sentences),
            curves=encoded(self._curves.get(user, [])),
            plan=encoded(lines),
        )

    def hidden_from(self, user: str, former: Mapping[int, str]) -> HiddenIds:
        """What texts for a user may not have: ids of others' jobs, where these are hidden.

        `former` has owners of jobs that the state may not have any more.
        """
        if self.state.private in ((), (PROGRESS,)):
            return HiddenIds(frozenset())
        owners = {**former, **self._owner}
        return HiddenIds({str(job_id) for job_id, owner in owners.items() if owner != user})

    def _own_jobs(self, user: str) -> State:
        """The user's own jobs only, with no id of other users' jobs in any text."""
        state, ours = self.state, self._jobs_of.get(user, set())
        hidden = self.hidden_from(user, {})
        own_rows = (state.jobs[at] for at in self._rows.get(user, ()))
        rows = (replace(row, reason=hidden.masked(row.reason), sharing=hidden.masked(row.sharing)) for row in own_rows)
        sentences = [self._explained[at] for at in self._sentences.get(user, ())]
        lines = [self._plan[at] for at in self._lines.get(user, ())]
        shows_nodes = "nodes" not in state.private
        return replace(
            state,
            jobs=tuple(rows),
            nodes=tuple(_with_holders(node, ours) for node in state.nodes if shows_nodes),
            leases=tuple(lease for lease in state.leases if lease.job in ours),
            samples=state.samples if shows_nodes else (),
            explanations=encoded(
                [replace(one, sentences=tuple(map(hidden.masked, one.sentences))) for one in sentences]
            ),
            curves=encoded(self._curves.get(user, [])),
            plan=encoded([replace(line, text=hidden.masked(line.text)) for line in lines]),
            changes=encoded(
                [replace(change, text=hidden.masked(change.text)) for change in self._changes if change.jobid in ours]
            ),
        )


class HiddenIds:
    """Replaces ids of hidden jobs in texts, and any other number that happens to be equal to one."""

    def __init__(self, hidden: Container[str]) -> None:
        """`hidden`: the ids."""
        self._hidden = hidden

    def masked(self, text: str) -> str:
        """The text without them."""
        return _NUMBER.sub(lambda found: "another" if found[0] in self._hidden else found[0], text)


def _by_user(found: Iterable[tuple[str | None, _One]]) -> Mapping[str | None, list[_One]]:
    grouped: defaultdict[str | None, list[_One]] = defaultdict(list)
    for user, one in found:
        grouped[user].append(one)
    return dict(grouped)


def _with_own(others: list[_One], all_of_it: tuple[_One, ...], own: Iterable[int]) -> list[_One]:
    """The lines that everybody may see, with those of the user (positions `own`) in full."""
    found = others.copy()
    for at in own:
        found[at] = all_of_it[at]
    return found


def _without_report(row: JobRow) -> JobRow:
    reason = row.reason.partition(";")[0] if row.planned else ""
    return replace(
        row, step="-", value=None, utility=None, score=None, params="", params_changed=0, malformed=0, reason=reason
    )


def _with_holders(node: NodeRow, ours: Container[int]) -> NodeRow:
    return replace(
        node,
        jobs=tuple(held for held in node.jobs if held[0] in ours),
        devices=tuple(tuple(job if job in ours else HIDDEN for job in holders) for holders in node.devices),
    )


class ServingError(ExplschedError):
    """The socket cannot be served."""


class StateServer:
    """Sends each connecting user the newest state in a directory. Connections, memory and time are limited."""

    def __init__(self, directory: Path, most_bytes: int = _MOST_REMEMBERED_BYTES) -> None:
        """`most_bytes`: of what users were sent, to be sent again; with 100,000 jobs that is 50 MB for each user."""
        self._most_bytes = most_bytes
        self._file = directory / FILE
        self._stamp: tuple[int, int] | None = None
        self._visible: Visible | None = None
        self._encoded: dict[str, bytes] = {}
        self._connected: Counter[int] = Counter()

    async def answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        uid = peer(writer.get_extra_info("socket"))
        self._connected[uid] += 1
        try:
            if self._connected[uid] <= _MOST_OF_A_USER and self._connected.total() <= _MOST:
                async with asyncio.timeout(_TO_READ_S):
                    await self._send(writer, self.state_for(uid))
        except (OSError, TimeoutError) as error:  # the reader has gone, or does not read
            event(_LOG, logging.DEBUG, "state not sent", uid=uid, why=str(error) or type(error).__name__)
        finally:
            self._connected[uid] -= 1
            if not self._connected[uid]:
                del self._connected[uid]
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _send(self, writer: asyncio.StreamWriter, text: bytes) -> None:
        """Send in pieces, so that a client that does not read costs only the memory of one piece."""
        for begin in range(0, len(text), _PIECE_BYTES):
            writer.write(memoryview(text)[begin : begin + _PIECE_BYTES])
            await writer.drain()
        while writer.transport.get_write_buffer_size():
            await asyncio.sleep(0.01)

    def state_for(self, uid: int) -> bytes:
        """What a user may see as JSON; empty for a uid without a name, and while nothing is published."""
        self._refresh()
        if self._visible is None:
            return b""
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            return b""
        sees_all = uid in (0, os.geteuid()) or not self._visible.state.private
        key = "" if sees_all else user
        if key not in self._encoded:
            text = msgspec.json.encode(self._visible.state if sees_all else self._visible.of(user))
            if self.remembered_bytes + len(text) > self._most_bytes:
                self._encoded.clear()
            self._encoded[key] = text
        return self._encoded[key]

    @property
    def remembered_bytes(self) -> int:
        """What is kept for those who ask again."""
        return sum(map(len, self._encoded.values()))

    def _refresh(self) -> None:
        try:
            status = self._file.stat()
        except OSError:
            self._visible = self._stamp = None
            return
        stamp = status.st_mtime_ns, status.st_ino
        if stamp != self._stamp:
            found = read(self._file.parent)
            self._visible, self._stamp = Visible(found) if found else None, stamp
            self._encoded.clear()


class ServerProcess:
    """The server as a child process of the daemon: restarted when it ends, and ended with the daemon."""

    def __init__(self, directory: Path, path: Path, patience_s: float = _TO_ANSWER_S) -> None:
        """`patience_s`: how long `end` waits before it kills the server."""
        self.path = path
        self._patience_s = patience_s
        self._argv = argv(directory, path, _WITH_PARENT)
        self._process: subprocess.Popen[bytes] | None = None
        self._fault = ""
        self._backoff = self._pause = 0  # passes

    @property
    def pid(self) -> int | None:
        """The process id, None before the first start."""
        return self._process.pid if self._process else None

    def keep(self) -> None:
        """Start the server if it does not run; call this once per pass. While it cannot run, users' commands ask Slurm.

        If it ends again and again it is restarted after 1, 2, 4 ... passes, at most 64.
        """
        if self._process is not None and self._process.poll() is None:
            self._backoff = 0
            return
        if self._process is not None:
            self._log_once(f"it ended with status {self._process.returncode}")
            self.end()
            self._pause, self._backoff = self._backoff, min(max(1, 2 * self._backoff), 64)
        if self._pause:
            self._pause -= 1
            return
        try:
            # Nothing is written to its standard input; end of file tells the server that the daemon is gone.
            self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE)
        except OSError as error:
            self._log_once(str(error))

    def end(self) -> None:
        """End the server: the daemon ends, or will serve another socket."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(self._patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # its file system hangs: it ends when that answers
                    self._process.wait(self._patience_s)
            self._process = None

    def _log_once(self, fault: str) -> None:
        if fault != self._fault:
            event(_LOG, logging.WARNING, "state not served, users ask Slurm", socket=str(self.path), why=fault)
        self._fault = fault


def argv(directory: Path, path: Path, *more: str) -> list[str]:
    """The command line that serves the state in a directory at a socket."""
    return interpreter.of_module(__spec__.name if __spec__ else __name__, str(directory), str(path), *more)


def bound(path: Path) -> socket.socket:
    """A listening socket that all users of this host may connect to. Raises `ServingError`."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            if other.connect_ex(str(path)) == 0:
                raise ServingError(f"{path}: another process serves it")
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise ServingError(f"{path}: is there, and is no socket")
            path.unlink()
        listening.bind(str(path))
        path.chmod(_OPEN_MODE)
        listening.listen(_MOST)
    except OSError as error:
        listening.close()
        raise ServingError(f"{path}: {error.strerror or error}") from error
    except ServingError:
        listening.close()
        raise
    return listening


async def serve(directory: Path, path: Path, *, with_parent: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, or with `with_parent` until standard input ends. Raises `ServingError`."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, done.set)
    if with_parent:
        loop.add_reader(sys.stdin.fileno(), done.set)
    server = await asyncio.start_unix_server(StateServer(directory).answer, sock=bound(path))
    try:
        await done.wait()
    finally:
        server.close()
        with contextlib.suppress(OSError):  # as where its file system is read-only by now: the next one removes it
            path.unlink(missing_ok=True)


def main(directory: str, path: str, *more: str) -> None:
    """Run the server process."""
    try:
        asyncio.run(serve(Path(directory), Path(path), with_parent=_WITH_PARENT in more))
    except ServingError as error:
        sys.exit(f"sexplschedd: error: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
