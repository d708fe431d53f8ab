"""Works off the batches: `python -m inference_gateway.batches.worker`, kept running by the gateway's supervisor.

Of several gateways one works, the one that has the lock. Requests go through its HAProxy, as those of the batch's key
and of class `batch`, and only as many at a time as leave the service's other requests their room. An answer is a line
of the results once it was written as a whole; who begins anew reads the results and asks for what is missing. So each
request has one line, and may have been sent more often.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import aiohttp
import click
import msgspec

from explsched import log
from explsched.errors import ExplschedError
from inference_gateway import accepted
from inference_gateway.accepted import Accepted
from inference_gateway.batches.store import Batch, Counts, Fault, Faults, Owned, owners
from inference_gateway.control import state
from inference_gateway.control.report import Report, ServiceReport
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.settings import ApiKey, BatchSettings
from inference_gateway.model import BatchLoad
from inference_gateway.services import ServiceSection

_LOG = logging.getLogger("explsched.gateway")
_LOOK_S = 0.5
_SAVE_S = 1.0
_RETRY_S = 2.0
_LONGEST_WAIT_S = 30.0
"""For a key that has used up its tokens."""

_LOCK_S = 0.5
_RESERVE = 0.15
"""This share of a service's places stays free for its other requests, as in `queueing`."""

_ATTEMPTS = 10
"""A request that so many replicas broke off at, or were silent about, is answered with the last error."""

_NOBODY_HAD_IT = frozenset({429, 503})
_AGAIN = _NOBODY_HAD_IT | {502, 504}
_SHOWN_FAULTS = 100
_DRAFT_S = 3600.0


class _Body(msgspec.Struct):
    model: str
    stream: bool = False


class _Line(msgspec.Struct):
    """A line of the input."""

    custom_id: str
    url: str
    body: _Body
    method: str = "POST"


class _Sent(msgspec.Struct):
    """What of such a line goes to a replica, as it is written."""

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


class _Answered(msgspec.Struct):
    custom_id: str


def room(service: ServiceSection, seen: ServiceReport | None, own: int) -> int:
    """How many requests of batches a service may have now. `own` is how many of those in flight are ours.

    All of what its serving replicas take, without the reserve and without what others have. Where a batch may start
    replicas, one waits for the first.
    """
    if seen is None or service.batches == "none":
        return 0
    if not seen.serving:
        return 1 if service.batches == "start" else 0
    others = max(0, seen.in_flight - own) if service.batches == "start" else seen.in_flight
    places = seen.serving * service.concurrency
    return max(0, places - int(_RESERVE * places) - others - seen.queued)


@dataclass(frozen=True, slots=True)
class Requests:
    """A checked input: the service that all its requests are for, and where each lies in the file."""

    service: str
    custom_ids: tuple[str, ...]
    places: tuple[tuple[int, int], ...]


def read_requests(path: Path, endpoint: str, now: Accepted, key: ApiKey | None, most: int) -> Requests | Faults:
    """Check an input. Raises `OSError`."""
    service_of = {
        model: name for name, one in now.section.services.items() for model in (name, *one.models, *one.also_serves)
    }
    faults: list[Fault] = []
    places: dict[str, tuple[int, int]] = {}
    services: set[str] = set()
    offset = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            place, offset = (offset, len(text)), offset + len(text)
            if not text.strip():
                continue
            try:
                line = msgspec.json.decode(text, type=_Line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                faults.append(Fault("invalid_json_line", str(error), number))
                continue
            service = service_of.get(line.body.model, "")
            faults += _line_faults(line, number, endpoint, line.custom_id in places)
            faults += _service_faults(line.body.model, service, number, endpoint, now, key)
            services.add(service)
            places[line.custom_id] = place
            if len(places) > most:
                faults.append(Fault("too_many_requests", f"more than {most} (batches.requests_per_batch)", number))
            if len(faults) >= _SHOWN_FAULTS:
                break
    if not places and not faults:
        faults.append(Fault("empty_file", "the file has no requests"))
    if len(services) > 1:
        faults.append(Fault("mismatched_model", "all requests of a batch are for one service"))
    if faults:
        return Faults(tuple(faults[:_SHOWN_FAULTS]))
    return Requests(services.pop(), tuple(places), tuple(places.values()))


def _line_faults(line: _Line, number: int, endpoint: str, seen: object) -> Iterator[Fault]:
    if seen:
        yield Fault("duplicate_custom_id", f"{line.custom_id!r} is there twice", number, "custom_id")
    if line.method != "POST":
        yield Fault("invalid_method", f"found {line.method!r}, accepted: POST", number, "method")
    if line.url != endpoint:
        yield Fault("invalid_url", f"found {line.url!r}, accepted: {endpoint}, as the batch says", number, "url")
    if line.body.stream:
        yield Fault("invalid_request", "a batch has no streams", number, "body.stream")


def _service_faults(
    model: str, service: str, number: int, endpoint: str, now: Accepted, key: ApiKey | None
) -> Iterator[Fault]:
    one = now.section.services.get(service)
    if one is None or one.batches == "none" or (key is not None and key.services and service not in key.services):
        yield Fault("model_not_found", f"no batches of {model!r}: unknown, closed to them or to this key", number)
    elif endpoint not in one.paths:
        yield Fault("invalid_url", f"{service} has no open path {endpoint}", number, "url")


class Results:
    """One file of results that only grows: whole lines, also after a full disk and after SIGKILL."""

    def __init__(self, path: Path) -> None:
        """Cut off what was not written to its end. Raises `OSError`."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.custom_ids: set[str] = set()
        self._size = 0
        with os.fdopen(os.dup(self._handle), "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.custom_ids.add(msgspec.json.decode(line, type=_Answered).custom_id)
                self._size += len(line)
        os.ftruncate(self._handle, self._size)

    def add(self, result: _Result) -> None:
        """Write a line; none of it is there if that fails. Raises `OSError`."""
        text = msgspec.json.encode(result) + b"\n"
        try:
            if os.pwrite(self._handle, text, self._size) < len(text):
                raise OSError("the disk is full")
        except OSError:
            os.ftruncate(self._handle, self._size)
            raise
        self._size += len(text)
        self.custom_ids.add(result.custom_id)

    def close(self) -> None:
        """Wait until all is on disk. Raises `OSError`."""
        os.fsync(self._handle)
        os.close(self._handle)


@dataclass(slots=True)
class Job:
    """A batch that is being worked off."""

    owned: Owned
    batch: Batch
    requests: Requests
    output: Results
    errors: Results
    source: int
    pending: deque[int]
    attempts: Counter[int] = field(default_factory=Counter)
    in_flight: int = 0
    saved_s: float = 0.0
    resume_s: float = 0.0
    """While requests find no room, or their key has no tokens left, none is sent."""

    @classmethod
    def of(cls, owned: Owned, batch: Batch, requests: Requests) -> Job:
        """Begin or go on: what has a line of results is done. Raises `OSError`."""
        output, errors = Results(owned.path(batch.id, "output")), Results(owned.path(batch.id, "errors"))
        done = output.custom_ids | errors.custom_ids
        pending = deque(index for index, name in enumerate(requests.custom_ids) if name not in done)
        source = os.open(owned.path(batch.input_file_id, "data"), os.O_RDONLY | os.O_CLOEXEC)
        begun = msgspec.structs.replace(
            batch, status="in_progress", in_progress_at=batch.in_progress_at or int(time.time())
        )
        return cls(owned, begun, requests, output, errors, source, pending)

    def body(self, index: int) -> bytes:
        """A request as its line has it. Raises `OSError`."""
        offset, length = self.requests.places[index]
        return bytes(msgspec.json.decode(os.pread(self.source, length, offset), type=_Sent).body)

    def counts(self) -> Counts:
        """How far it is."""
        ended = len(self.output.custom_ids), len(self.errors.custom_ids)
        return Counts(len(self.requests.custom_ids), *ended)

    def save(self, now_s: float) -> None:
        """Let clients see how far it is, now and then. Raises `OSError`."""
        counts = self.counts()
        if counts != self.batch.request_counts and now_s >= self.saved_s + _SAVE_S:
            self.saved_s = now_s
            self.batch = msgspec.structs.replace(self.batch, request_counts=counts)
            self.owned.update(self.batch)

    def end(self, status: str) -> None:
        """Close the results; `finish` makes them files. Raises `OSError`."""
        if status == "expired":
            done = self.output.custom_ids | self.errors.custom_ids
            for custom_id in self.requests.custom_ids:
                if custom_id not in done:
                    self.errors.add(_failed(custom_id, "batch_expired", "its window has passed"))
        self.output.close()
        self.errors.close()
        os.close(self.source)
        finish(self.owned, msgspec.structs.replace(self.batch, request_counts=self.counts(), ends_as=status))


def finish(owned: Owned, batch: Batch) -> None:
    """Make the results files, and tell that the batch has ended. May be called again. Raises `OSError`."""
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


class Worker:
    """All batches of a gateway. `again` is a client to the socket where HAProxy takes requests of known keys."""

    def __init__(self, now: Accepted, settings: BatchSettings, again: aiohttp.ClientSession) -> None:
        self._now = now
        self._settings = settings
        self._again = again
        self._keys = {key.name: key for key in now.keys}
        self._jobs: dict[str, Job] = {}
        self._ended: dict[str, set[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._run = secrets.token_hex(8)
        self._told = BatchLoad("")
        self._seen: Mapping[str, ServiceReport] = {}
        self._turn = 0

    def look(self) -> None:
        """Begin what is new, end what is over, send what there is room for. Raises `OSError`."""
        shown = state.read(self._now.paths.status, Report)
        self._seen = {service.name: service for service in shown.services} if shown else {}
        for owned in owners(self._settings):
            for batch in owned.unfinished(self._ended.setdefault(owned.owner, set())):
                self._tend(owned, batch)
        self.send()
        load = BatchLoad(self._run, dict(self._sent), dict(self._in_flight))
        if load != self._told and state.show(self._now.paths.batch_load, load):
            self._told = load

    def _tend(self, owned: Owned, batch: Batch) -> None:
        job = self._jobs.get(batch.id)
        if batch.ends_as:  # it was about to end when its worker did
            finish(owned, batch)
            return
        if job is None:
            job = self._begin(owned, batch)
            if job is None:
                return
        now_s = time.time()
        if batch.status == "cancelling" and job.batch.cancelling_at is None:
            job.batch = msgspec.structs.replace(job.batch, status="cancelling", cancelling_at=batch.cancelling_at)
            owned.update(job.batch)
        ending = self._ending(job, now_s)
        if not ending or job.in_flight:
            job.save(now_s)
            return
        del self._jobs[batch.id]
        job.end(ending)
        log.event(_LOG, logging.INFO, "batch ended", batch=batch.id, key=owned.owner, status=ending)

    def _begin(self, owned: Owned, batch: Batch) -> Job | None:
        """Check its input and begin or go on; None if it has failed."""
        key = self._keys.get(owned.owner)
        try:
            data = owned.path(batch.input_file_id, "data")
            found = read_requests(data, batch.endpoint, self._now, key, self._settings.requests_per_batch)
        except FileNotFoundError:
            found = Faults((Fault("file_not_found", f"{batch.input_file_id} is gone"),))
        if isinstance(found, Faults):
            failed = {"status": "failed", "failed_at": int(time.time()), "errors": found}
            owned.update(msgspec.structs.replace(batch, **failed))
            return None
        job = self._jobs[batch.id] = Job.of(owned, batch, found)
        owned.update(job.batch)
        log.event(_LOG, logging.INFO, "batch", batch=batch.id, key=owned.owner, requests=len(found.custom_ids))
        return job

    def _ending(self, job: Job, now_s: float) -> str:
        """The status that it ends with, once nothing of it is in flight; empty while it goes on."""
        if not job.pending and sum((job.counts().completed, job.counts().failed)) == job.counts().total:
            return "completed"
        if job.batch.cancelling_at is not None or not self._admitted(job.owned.owner, now_s):
            return "cancelled"
        return "expired" if now_s >= job.batch.expires_at else ""

    def _admitted(self, owner: str, now_s: float) -> bool:
        """Whether the key may still use the gateway."""
        if self._now.section.listen.keys is None:
            return owner == ""
        key = self._keys.get(owner)
        return key is not None and (key.expires_s is None or now_s < key.expires_s)

    def send(self) -> None:
        """Send one request of each batch in turn, while there is room."""
        now_s = time.time()
        going_on = [job for job in self._jobs.values() if job.pending and now_s >= job.resume_s]
        open_jobs = [job for job in going_on if not self._ending(job, now_s)]
        left = {name: self._room(name) for name in {job.requests.service for job in open_jobs}}
        while open_jobs := [job for job in open_jobs if job.pending and left[job.requests.service] > 0]:
            self._turn += 1
            job = open_jobs[self._turn % len(open_jobs)]
            left[job.requests.service] -= 1
            task = asyncio.create_task(self._ask(job, job.pending.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _room(self, name: str) -> int:
        own = self._in_flight[name]
        return room(self._now.section.services[name], self._seen.get(name), own) - own

    async def _ask(self, job: Job, index: int) -> None:
        """One request; its answer is written, or it is asked again later."""
        service = job.requests.service
        job.in_flight += 1
        self._in_flight[service] += 1
        self._sent[service] += 1
        try:
            answered = await self._write(job, index)
        except OSError as error:
            log.event(_LOG, logging.ERROR, "results not written", batch=job.batch.id, why=error.strerror or str(error))
            answered = False
        finally:
            job.in_flight -= 1
            self._in_flight[service] -= 1
        if answered:
            self.send()
        else:
            job.pending.append(index)
            job.resume_s = max(job.resume_s, time.time() + _RETRY_S)

    async def _write(self, job: Job, index: int) -> bool:
        """Ask, and write what came; False if it is to be asked again. Raises `OSError` of the disk."""
        custom_id = job.requests.custom_ids[index]
        try:
            status, wait_s, body = await self._post(job, job.body(index))
        except aiohttp.ClientConnectorError:
            return False  # HAProxy is being started: nobody has it
        except (aiohttp.ClientError, TimeoutError) as error:
            job.attempts[index] += 1
            if job.attempts[index] < _ATTEMPTS:
                return False
            job.errors.add(_failed(custom_id, "no_answer", str(error) or type(error).__name__))
            return True
        if status in _AGAIN:
            job.attempts[index] += status not in _NOBODY_HAD_IT
            job.resume_s = time.time() + (wait_s if status == HTTPStatus.TOO_MANY_REQUESTS else 0.0)
            if job.attempts[index] < _ATTEMPTS:
                return False
        response = _Response(status, _request_name(), _json(body))
        results = job.output if status < HTTPStatus.BAD_REQUEST else job.errors
        results.add(_Result(_request_name(), custom_id, response))
        return True

    async def _post(self, job: Job, body: bytes) -> tuple[int, float, bytes]:
        """Status, the seconds that the gateway wants to be left alone, and the answer."""
        headers = {
            "content-type": "application/json",
            "x-gateway-service": job.requests.service,
            "x-gateway-client": "batch",
            "x-gateway-batch": "1",
            **({"x-gateway-key": job.owned.owner} if job.owned.owner else {}),
        }
        async with self._again.post(f"http://haproxy{job.batch.endpoint}", data=body, headers=headers) as answer:
            after = answer.headers.get("retry-after", "")
            wait_s = min(_LONGEST_WAIT_S, float(after)) if after.isdigit() else 0.0
            return answer.status, wait_s, await answer.read()


def _json(body: bytes) -> msgspec.Raw:
    """An answer as JSON: one that is none becomes a text."""
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.Raw(msgspec.json.encode(body.decode(errors="replace")))
    return msgspec.Raw(body)


async def _work(now: Accepted, settings: BatchSettings, files: Files) -> None:
    """Work until told to stop, or until the supervisor is gone: what is in flight then is asked again by the next."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    parent = os.getppid()
    longest_s = max(one.response_timeout_s + one.queue_deadline_s for one in now.section.services.values())
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=longest_s)
    connector = aiohttp.UnixConnector(str(files.again_socket), limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as again:
        while not stop.is_set() and os.getppid() == parent:
            with state.locked(now.paths.batch_lock) as ours:
                worker = Worker(now, settings, again)
                if ours:
                    _remove_drafts(settings)
                while ours and not stop.is_set() and os.getppid() == parent:
                    try:
                        worker.look()
                    except OSError as error:
                        why = error.strerror or str(error)
                        log.event(_LOG, logging.ERROR, "batches wait", file=str(error.filename), why=why)
                    await _sleep(stop, _LOOK_S)
            await _sleep(stop, _LOCK_S)


async def _sleep(stop: asyncio.Event, time_s: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), time_s)
    except TimeoutError:
        return


def _remove_drafts(settings: BatchSettings) -> None:
    """Uploads whose gateway was killed."""
    for owned in owners(settings):
        for path in owned.directory.glob("*.draft"):
            if path.stat().st_mtime < time.time() - _DRAFT_S:
                path.unlink(missing_ok=True)


@click.command()
@click.option("--services", "services_path", required=True, type=click.Path(path_type=Path))
@click.option("--accepted", "kept", required=True, type=click.Path(path_type=Path))
@click.option("--run-directory", required=True, type=click.Path(path_type=Path))
def main(services_path: Path, kept: Path, run_directory: Path) -> None:
    """Work off the batches of a gateway."""
    log.set_up("info", None)
    try:
        now = accepted.kept(kept, services_path) or accepted.read(services_path)
        settings = now.batches()
        if settings is not None:
            asyncio.run(_work(now, settings, Files(run_directory)))
    except ExplschedError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
