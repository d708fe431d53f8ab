"""The reports of a replica's job to the gateway, as files in the replica's directory.

    endpoint   JSON: the address at which it will listen, empty until the job has a port
    ending     not empty once the replica has been told to end
    leaving    there once it has: what gateways of 0.1.0 look for, and all that its replicas write
    usage      JSON: tokens by API key, from the `usage` of its server's answers. Those of open streams by themselves:
               gateways of 0.1.0 leave them out, because they count nothing without a new request
    reading    JSON: the last prompts that it has read, in bytes of bodies, and the time taken

Files, because the directory is on storage that gateway and nodes share anyway, and because files survive a restart of
the gateway. `endpoint` and `ending` exist from the start and are opened at each look: an NFS client remembers for up to
half a minute that a file is missing, but asks the server at each opening of one that exists (nfs(5)). An endpoint does
not mean readiness; only an answer over HTTP does. Standard library only: this runs in jobs.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from explsched.atomic_file import replace_file
from inference_gateway.queueing import Stretch


@dataclass(frozen=True, slots=True)
class Registration:
    """The address at which a job's replica listens. `restarts` tells the runs of a requeued job apart."""

    host: str
    port: int
    job_id: int
    restarts: int = 0


def prepare(directory: Path) -> None:
    """Create the files that the gateway looks at before there is anything to report."""
    for name in ("endpoint", "ending"):
        (directory / name).touch()


def register(directory: Path, registration: Registration) -> None:
    """Report where the replica will listen; a reader finds all of it or nothing."""
    replace_file(directory / "endpoint", json.dumps(asdict(registration)))
    (directory / "leaving").unlink(missing_ok=True)
    (directory / "ending").write_bytes(b"")


def registered(directory: Path) -> Registration | None:
    """The job's registration; None if there is none yet or it is invalid."""
    try:
        return Registration(**json.loads((directory / "endpoint").read_text(encoding="ascii")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return None


def leave(directory: Path) -> None:
    """Report that the replica is about to end."""
    (directory / "ending").write_bytes(b"ending\n")
    (directory / "leaving").touch()


def leaving(directory: Path) -> bool:
    """Whether the replica is about to end. Called for every replica every second, so without the cost of a `Path`."""
    try:
        file = os.open(f"{directory}/ending", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.path.exists(f"{directory}/leaving")  # noqa: PTH110  for the cost
    except OSError:
        return False
    try:
        return os.read(file, 1) != b""
    finally:
        os.close(file)


_FILE = "usage"
_EVENTS = (b"data: {", b"data:{")
"""As the events of streams begin; some servers, such as TGI, write no blank."""
_AFTER_USAGE = 1
"""As many events follow the last `usage`: Anthropic's `message_stop`. With more of them the stream was cut."""
_TAIL_BYTES = 8192
_USAGE_KEY = b'"usage"'
_USAGE_BYTES = 1024
"""`usage` is no longer than this. vLLM writes what else a client has asked for behind it: the prompt's token ids."""

# In JSON a quote within a string follows a backslash, so text written by a model never looks like a member.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})')
_COMPLETION = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})')
_TOTAL = re.compile(rb'"total_tokens"\s*:\s*(\d{1,12})')
"""Alone where nothing is written, as in older vLLM's answers to `/v1/rerank`: then it is the prompt."""
_HEAD_BYTES = 1 << 17
"""Longer heads are not parsed; the end of such an answer is noticed with the next one."""
_INTERIM = re.compile(rb"HTTP/1\.1 1(?!01)\d\d\b")
"""Begins what only precedes an answer, such as 100 (Continue)."""
_LENGTH = re.compile(rb"\r\ncontent-length[ \t]*:[ \t]*(\d{1,15})[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding[ \t]*:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_CHUNK = re.compile(rb"\r\n[0-9a-fA-F]{1,8}\r\n")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Requests and their tokens. For `estimated` requests events were counted, because there was no `usage`."""

    requests: int = 0
    prompt: int = 0
    completion: int = 0
    estimated: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.requests + other.requests,
            self.prompt + other.prompt,
            self.completion + other.completion,
            self.estimated + other.estimated,
        )

    def __sub__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.requests - other.requests,
            self.prompt - other.prompt,
            self.completion - other.completion,
            self.estimated - other.estimated,
        )


@dataclass(frozen=True, slots=True)
class _Usage:
    """The tokens of a `usage`, and how many `events` came before it."""

    prompt: int
    completion: int
    events: int

    @classmethod
    def of(cls, text: bytes, events: int) -> _Usage | None:
        """The `usage` with which this text begins; None if it is none, or says nothing."""
        if not _USAGE.match(text):
            return None
        prompt, completion = _PROMPT.search(text), _COMPLETION.search(text)
        if not prompt and not completion:
            prompt = _TOTAL.search(text)
        if not prompt and not completion:
            return None
        return cls(int(prompt[1]) if prompt else 0, int(completion[1]) if completion else 0, events)

    def or_larger(self, later: _Usage | None) -> _Usage:
        """The larger counts of both, and the events before the later one, which may be the end of the answer."""
        if later is None:
            return self
        return _Usage(max(self.prompt, later.prompt), max(self.completion, later.completion), later.events)


@dataclass(slots=True)
class AnswerReader:
    """Parses the bytes of one answer as they pass: its head, and its body in any framing.

    In OpenAI's interface an answer ends with `"usage": {"prompt_tokens": ..., "completion_tokens": ...}`, a stream only
    if the client asks for it (`stream_options`). Anthropic's streams begin with one, of the prompt. Without a last one,
    as when the client disconnects, each event since counts as a token and the request as estimated. Servers also write
    back what was in the request, such as a tool with a property `usage`: the largest counts.
    """

    events: int = 0
    _tail: bytes = b""
    _largest: _Usage | None = None
    _head: bytes | None = b""
    _left: int | None = None
    _chunked: bool = False

    def read(self, part: bytes) -> None:
        """Take the next bytes."""
        self._measure(part)
        for begin in _EVENTS:
            self.events += (self._tail[1 - len(begin) :] + part[: len(begin) - 1]).count(begin)
        self.events += _events_in(part)
        text = self._tail + part
        self._tail = text[-_TAIL_BYTES:]
        self._largest = self._largest_in(text, len(text) - len(self._tail))

    def _largest_in(self, text: bytes, end: int) -> _Usage | None:
        """The largest `usage` of those seen before and those in this text, the last of the answer, before `end`."""
        largest = self._largest
        if text.find(_USAGE_KEY, 0, end + len(_USAGE_KEY) - 1) < 0:
            return largest
        events, start = self.events - _events_in(text), 0
        while (place := text.find(_USAGE_KEY, start, end + len(_USAGE_KEY) - 1)) >= 0:
            events += _events_in(text[start:place])
            start = place + len(_USAGE_KEY)
            following = text.find(_USAGE_KEY, start, place + _USAGE_BYTES)
            near = text[place : following if following >= 0 else place + _USAGE_BYTES]
            found = _Usage.of(_CHUNK.sub(b"", near), events)
            largest = largest.or_larger(found) if largest else found
        return largest

    def _measure(self, part: bytes) -> None:
        """Read the length of the body from the head, and track how much of it is left."""
        if self._head is None:
            self._left = None if self._left is None else self._left - len(part)
            return
        self._head = (self._head + part)[:_HEAD_BYTES]
        head, end, body = self._head.partition(b"\r\n\r\n")
        while end and _INTERIM.match(head):
            self._head = body
            head, end, body = body.partition(b"\r\n\r\n")
        if not end:
            return
        self._head = None
        length = _LENGTH.search(head + b"\r\n")
        self._left = int(length[1]) - len(body) if length else None
        self._chunked = _CHUNKED.search(head + b"\r\n") is not None

    @property
    def ended(self) -> bool:
        """Whether the answer is known to be complete: it has its full length, or its last chunk.

        The text of a chunk is unlikely to look like the last chunk: JSON contains no raw CR LF.
        """
        if self._left is not None:
            return self._left <= 0
        return self._chunked and self._tail.endswith(b"\r\n0\r\n\r\n")

    def tokens(self) -> Tokens:
        """The tokens of the answer so far."""
        tail = _CHUNK.sub(b"", self._tail)
        usage = self._largest_in(tail, len(tail))
        if usage is None:
            return Tokens(1, 0, self.events, 1 if self.events else 0)
        later = self.events - usage.events
        cut = later if later > _AFTER_USAGE else 0
        return Tokens(1, usage.prompt, usage.completion + cut, 1 if cut else 0)


def _events_in(text: bytes) -> int:
    return sum(map(text.count, _EVENTS))


@dataclass(frozen=True, slots=True)
class UsageReport:
    """The tokens of one run of a replica, by API key. `run` tells the runs of a requeued job apart."""

    run: str
    by_key: dict[str, Tokens]


@dataclass(frozen=True, slots=True)
class _Sums:
    """The tokens of the answers to a key that have `ended`, and what its `open` streams have so far."""

    ended: Tokens = Tokens()
    open: Tokens = Tokens()


@dataclass(slots=True)
class UsageCounter:
    """The sums of this run, written to a file."""

    run: str = field(default_factory=lambda: f"{time.time():.3f}")
    _sums: dict[str, _Sums] = field(default_factory=dict)
    _written: dict[str, _Sums] = field(default_factory=dict)
    _writing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def by_key(self) -> dict[str, Tokens]:
        """All tokens so far."""
        return {key: sums.ended + sums.open for key, sums in self._sums.items()}

    def add(self, key: str, ended: Tokens, more_open: Tokens = Tokens()) -> None:
        """Add the tokens of an answer that has ended, and those that a stream has more than before while it is open."""
        known = self._sums.get(key, _Sums())
        self._sums[key] = _Sums(known.ended + ended, known.open + more_open)  # both at once: a thread may be writing

    def write(self, directory: Path) -> None:
        """Write the sums to the replica's directory if they have changed, from any thread. Raises `OSError`."""
        with self._writing:  # or an earlier sum could replace a later one
            now = dict(self._sums)
            if now != self._written:
                ended = {key: asdict(one.ended) for key, one in now.items()}
                open_ = {key: asdict(one.open) for key, one in now.items()}
                replace_file(directory / _FILE, json.dumps({"run": self.run, "by_key": ended, "open": open_}))
                self._written = now


def usage_of(directory: Path) -> UsageReport | None:
    """A replica's usage report, with open streams; None if there is none or it is invalid."""
    try:
        found = json.loads((directory / _FILE).read_text(encoding="utf-8"))
        by_key = {key: Tokens(**tokens) for key, tokens in found["by_key"].items()}
        for key, tokens in found.get("open", {}).items():
            by_key[key] = by_key.get(key, Tokens()) + Tokens(**tokens)
        return UsageReport(found["run"], by_key)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


_STREAMS = re.compile(rb'"stream"\s*:\s*true')
_SEAM_BYTES = 24


@dataclass(slots=True)
class BodyReader:
    """Parses the bytes of a request's body as they pass: its size, and whether it asks for a stream."""

    size: int = 0
    streams: bool = False
    _seam: bytes = b""

    def read(self, part: bytes) -> None:
        """Take the next bytes."""
        self.size += len(part)
        if self.streams:
            return
        text = self._seam + part
        # A quote that follows a backslash is part of a string.
        self.streams = any(text[found.start() - 1 : found.start()] != b"\\" for found in _STREAMS.finditer(text))
        self._seam = text[-_SEAM_BYTES:]


_READING = "reading"


def report_reading(directory: Path, stretches: Sequence[Stretch]) -> None:
    """Write the replica's reading stretches to its directory. Raises `OSError`."""
    replace_file(directory / _READING, json.dumps([[one.amount, round(one.seconds, 6)] for one in stretches]))


def reading_of(directory: Path) -> tuple[Stretch, ...]:
    """The reading stretches that a replica has reported; empty if there are none or they are invalid."""
    try:
        found = json.loads((directory / _READING).read_text(encoding="ascii"))
        reported = tuple(Stretch(float(amount), float(seconds)) for amount, seconds in found)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError):
        return ()
    return tuple(one for one in reported if one.amount > 0 and one.seconds > 0)
