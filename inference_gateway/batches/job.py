"""One batch: its validated input, its progress, and its results as files.

Each answer is appended to the results as one line. After a restart the results are read, and only requests without a
complete line are sent again. So each request has one line, but may have been sent more than once.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from codecs import BOM_UTF8
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from inference_gateway.accepted import Accepted
from inference_gateway.batches.store import Batch, Counts, Faults, LineFault, Owned
from inference_gateway.dataplane.open_paths import opens
from inference_gateway.dataplane.settings import ApiKey

_SAVE_S = 1.0
_SHOWN_FAULTS = 100
_EXPIRED = "batch_expired"
_OF_SEVERAL = LineFault("mismatched_model", "all requests of a batch are for one service")


_CustomId = Annotated[str, Meta(max_length=512)]
"""Those of all requests of a batch are in memory."""


class _Body(msgspec.Struct):
    model: str
    stream: bool | None = None


class _InputLine(msgspec.Struct):
    """A line of the input."""

    custom_id: _CustomId
    url: str
    body: _Body
    method: str = "POST"


class _Sent(msgspec.Struct):
    """The part of such a line that is sent to a replica, byte for byte."""

    body: msgspec.Raw


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Result(msgspec.Struct):
    """A line of the results."""

    id: str
    custom_id: str
    response: _Response | None = None
    error: _Error | None = None


class _Ended(msgspec.Struct):
    """What is read of a line of the results after a restart."""

    custom_id: str
    error: _Error | None = None


@dataclass(frozen=True, slots=True)
class Requests:
    """A validated input: the service of all its requests, and the (offset, length) of each in the file, in bytes.

    `closed` says why the service takes none of them now, of a batch that has begun; empty if it does.
    """

    service: str
    custom_ids: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    closed: str = ""


def read_requests(
    path: Path, endpoint: str, now: Accepted, key: ApiKey | None, most: int, *, begun: bool = False
) -> Requests | Faults:
    """Validate an input file of at most `most` requests. Raises `OSError`.

    A batch that has `begun` is refused neither by lower limits nor by services that are gone, renamed or closed: the
    next reload may bring them back.
    """
    service_of = {
        model: name for name, one in now.section.services.items() for model in (name, *one.models, *one.also_serves)
    }
    limit_mib = now.section.listen.body_limit_mib
    most, limit_bytes = (sys.maxsize, sys.maxsize) if begun else (most, limit_mib << 20)
    faults: list[LineFault] = []
    closed = ""
    places: dict[str, tuple[int, int]] = {}
    services: set[str] = set()
    with path.open("rb") as file:
        offset = len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0
        file.seek(offset)
        for number, text in enumerate(file, 1):
            place, offset = (offset, len(text)), offset + len(text)
            if not text.strip():
                continue
            try:
                line = msgspec.json.decode(text, type=_InputLine)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                faults.append(LineFault("invalid_json_line", str(error), number))
                continue
            service = service_of.get(line.body.model, "")
            if len(text) > limit_bytes and memoryview(_body(text)).nbytes > limit_bytes:
                faults.append(
                    LineFault("request_too_large", f"the body is larger than {limit_mib} MiB", number, "body")
                )
            faults += _line_faults(line, number, endpoint, line.custom_id in places)
            fault = _service_fault(line.body.model, service, number, endpoint, now, key)
            if fault is None:
                services.add(service)
            elif begun:
                closed = closed or fault.message
            else:
                faults.append(fault)
            places[line.custom_id] = place
            if len(places) > most:
                faults.append(LineFault("too_many_requests", f"more than {most} (batches.requests_per_batch)", number))
            if len(faults) >= _SHOWN_FAULTS:
                break
    if not places and not faults:
        faults.append(LineFault("empty_file", "the file has no requests"))
    if len(services) > 1 and begun:
        closed = closed or _OF_SEVERAL.message
    elif len(services) > 1:
        faults.append(_OF_SEVERAL)
    if faults:
        return Faults(tuple(faults[:_SHOWN_FAULTS]))
    return Requests("" if closed else services.pop(), tuple(places), tuple(places.values()), closed)


def _body(line: bytes) -> msgspec.Raw:
    return msgspec.json.decode(line, type=_Sent).body


def _line_faults(line: _InputLine, number: int, endpoint: str, seen: object) -> Iterator[LineFault]:
    if seen:
        yield LineFault("duplicate_custom_id", f"{line.custom_id!r} is there twice", number, "custom_id")
    if line.method != "POST":
        yield LineFault("invalid_method", f"found {_cut(line.method)}, accepted: POST", number, "method")
    if line.url != endpoint:
        yield LineFault(
            "invalid_url", f"found {_cut(line.url)}, accepted: {endpoint}, as the batch says", number, "url"
        )
    if line.body.stream:
        yield LineFault("invalid_request", "a batch has no streams", number, "body.stream")


def _service_fault(
    model: str, service: str, number: int, endpoint: str, now: Accepted, key: ApiKey | None
) -> LineFault | None:
    one = now.section.services.get(service)
    if one is None or one.batches == "none" or (key is not None and key.services and service not in key.services):
        why = f"no batches of {_cut(model)}: unknown, closed to them or to this key"
        return LineFault("model_not_found", why, number)
    if not opens(one.paths, endpoint):
        return LineFault("invalid_url", f"{service} has no open path {endpoint}", number, "url")
    return None


def _cut(text: str) -> str:
    """A client's text as messages show it: they are kept with the batch, and sent with each list of batches."""
    return repr(text[:80])


class Results:
    """An append-only file of results that contains only whole lines, also after a full disk or SIGKILL.

    Attributes:
        custom_ids: the requests that have a line.
        expired: whether some of them have it because the batch has expired.

    """

    def __init__(self, path: Path) -> None:
        """Open the file and remove an incomplete last line. Raises `OSError`, `msgspec.MsgspecError`."""
        self.custom_ids: set[str] = set()
        self.expired = False
        self._size = 0
        with ExitStack() as opened:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, self._handle)
            with os.fdopen(os.dup(self._handle), "rb") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._count(msgspec.json.decode(line, type=_Ended))
                    self._size += len(line)
            os.ftruncate(self._handle, self._size)
            self._opened = opened.pop_all()

    def add(self, result: _Result) -> None:
        """Append a line, or nothing if that fails. Raises `OSError`."""
        text = msgspec.json.encode(result) + b"\n"
        try:
            if os.pwrite(self._handle, text, self._size) < len(text):
                raise OSError("the disk is full")
        except OSError:
            os.ftruncate(self._handle, self._size)
            raise
        self._size += len(text)
        self._count(result)

    def _count(self, line: _Result | _Ended) -> None:
        self.custom_ids.add(line.custom_id)
        self.expired = self.expired or (line.error is not None and line.error.code == _EXPIRED)

    def sync(self) -> None:
        """Flush to disk. Raises `OSError`."""
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        self._opened.close()


@dataclass(slots=True)
class BatchJob:
    """A batch that is being processed. No request is sent before `resume_s`, which as `saved_s` is monotonic time."""

    owned: Owned
    batch: Batch
    requests: Requests
    output: Results
    errors: Results
    source: int
    opened: ExitStack
    pending: deque[int]
    attempts: Counter[int] = field(default_factory=Counter)
    in_flight: int = 0
    in_flight_bytes: int = 0
    saved_s: float = 0.0
    resume_s: float = 0.0

    @classmethod
    def of(cls, owned: Owned, batch: Batch, requests: Requests) -> BatchJob:
        """Begin or resume a batch: requests with a line of results are done. Raises as `Results` does."""
        with ExitStack() as opened:
            output = opened.enter_context(closing(Results(owned.path(batch.id, "output"))))
            errors = opened.enter_context(closing(Results(owned.path(batch.id, "errors"))))
            source = os.open(owned.path(batch.input_file_id, "data"), os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, source)
            done = output.custom_ids | errors.custom_ids
            pending = deque(index for index, name in enumerate(requests.custom_ids) if name not in done)
            begun = msgspec.structs.replace(
                batch, status="in_progress", in_progress_at=batch.in_progress_at or int(time.time())
            )
            return cls(owned, begun, requests, output, errors, source, opened.pop_all(), pending)

    def body(self, index: int) -> bytes:
        """The body of a request, as in the input. Raises `OSError`."""
        offset, length = self.requests.places[index]
        return bytes(_body(os.pread(self.source, length, offset)))

    def next_bytes(self) -> int:
        """The length of the line of the next request; its body is no longer."""
        return self.requests.places[self.pending[0]][1]

    def answer(self, index: int, status: int, body: bytes) -> None:
        """Write the answer to a request. Raises `OSError`."""
        results = self.output if status < HTTPStatus.BAD_REQUEST else self.errors
        response = _Response(status, _request_name(), _json(body))
        results.add(_Result(_request_name(), self.requests.custom_ids[index], response))

    def give_up(self, index: int, why: str) -> None:
        """Write that a request got no answer. Raises `OSError`."""
        self.errors.add(_failed(self.requests.custom_ids[index], "no_answer", why))

    def counts(self) -> Counts:
        """The progress of the batch."""
        ended = len(self.output.custom_ids), len(self.errors.custom_ids)
        return Counts(len(self.requests.custom_ids), *ended)

    def save(self, now_s: float) -> None:
        """Publish the progress, at most once every `_SAVE_S` of a monotonic clock. Raises `OSError`."""
        counts = self.counts()
        if counts != self.batch.request_counts and now_s >= self.saved_s + _SAVE_S:
            self.saved_s = now_s
            self.batch = msgspec.structs.replace(self.batch, request_counts=counts)
            self.owned.update(self.batch)

    def end(self, status: str) -> None:
        """Close the results, and `finish` the batch with this status. Raises `OSError`; it is to be resumed then."""
        with self.opened:
            if status == "expired":
                done = self.output.custom_ids | self.errors.custom_ids
                for custom_id in self.requests.custom_ids:
                    if custom_id not in done:
                        self.errors.add(_failed(custom_id, _EXPIRED, "its window has passed"))
            self.output.sync()
            self.errors.sync()
        finish(self.owned, msgspec.structs.replace(self.batch, request_counts=self.counts(), ends_as=status))


def finish(owned: Owned, batch: Batch) -> None:
    """Publish the results as files and mark the batch as ended. May be repeated after a crash. Raises `OSError`."""
    now_s = int(time.time())
    batch = msgspec.structs.replace(batch, status="finalizing", finalizing_at=batch.finalizing_at or now_s)
    owned.update(batch)
    ends = {f"{batch.ends_as}_at": now_s, "status": batch.ends_as}
    names = {"output_file_id": owned.keep_result(batch, "output"), "error_file_id": owned.keep_result(batch, "errors")}
    owned.update(msgspec.structs.replace(batch, **ends, **names))
    owned.path(batch.id, "cancel").unlink(missing_ok=True)


def _failed(custom_id: str, code: str, message: str) -> _Result:
    return _Result(_request_name(), custom_id, error=_Error(code, message))


def _request_name() -> str:
    return f"batch_req_{secrets.token_hex(12)}"


def _json(body: bytes) -> msgspec.Raw:
    """An answer as JSON on one line; one that is not JSON becomes a string."""
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.Raw(msgspec.json.encode(body.decode(errors="replace")))
    return msgspec.Raw(b" ".join(body.splitlines()))  # JSON has line breaks between its values only
