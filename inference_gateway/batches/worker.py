"""Processes the batches: `python -m inference_gateway.batches.worker`, kept running by the gateway's supervisor.

Where there are two gateways, only the worker that holds the lock is active. It sends requests through its HAProxy,
with the batch's key and priority `batch`, and only as many at a time as leave enough capacity for the service's other
requests. Requests in flight when a worker ends are sent again by the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import aiohttp
import click
import msgspec

from explsched import log
from explsched.errors import ExplschedError
from inference_gateway import accepted
from inference_gateway.accepted import Accepted
from inference_gateway.batches.job import BatchJob, finish, read_requests
from inference_gateway.batches.store import Batch, Faults, LineFault, Owned, owners
from inference_gateway.control import state
from inference_gateway.control.report import Report, ServiceReport
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.settings import BatchSettings
from inference_gateway.model import BatchLoad
from inference_gateway.sections import ServiceSection

_LOG = logging.getLogger("explsched.gateway")
_POLL_S = 0.5
_RETRY_S = 2.0
_LONGEST_WAIT_S = 30.0
"""Longest wait for a key that has used up its tokens."""

_LOCK_S = 0.5
_RESERVE = 0.15
"""This fraction of a service's places stays free for its other requests, as in `queueing`."""

_ATTEMPTS = 10
"""After this many attempts that failed at a replica, or timed out, the last error is the answer."""

IN_FLIGHT_BYTES = 128 << 20
"""The lines of all requests in flight together; one alone may be longer."""

_BATCHES_IN_MEMORY = 2
"""Of a key as many requests are in memory as in this many of the largest batches, and one batch more."""

_NOT_STARTED = frozenset({429, 503})
"""Statuses with which no replica has received the request."""
_RETRIED = _NOT_STARTED | {502, 504}
_DRAFT_S = 3600.0
"""An upload to which nothing was written for so long has lost its gateway."""

DRAFTS_EVERY_S = 300.0
_TO_SPARE_S = 10.0


def room(service: ServiceSection, seen: ServiceReport | None, own: int) -> int:
    """How many requests of batches a service may have in flight now. `own` of those in flight are the worker's.

    The places of its serving replicas, less the reserve and the other requests. Where batches may start replicas, one
    request is sent to a service without any.
    """
    if seen is None or service.batches == "none":
        return 0
    if not seen.serving:
        return 1 if service.batches == "start" else 0
    others = max(0, seen.in_flight - own) if service.batches == "start" else seen.in_flight
    places = seen.serving * service.concurrency
    return max(0, places - int(_RESERVE * places) - others - seen.queued)


class Worker:
    """All batches of a gateway. `again` is a client to the socket on which HAProxy takes requests of known keys."""

    def __init__(self, now: Accepted, settings: BatchSettings, again: aiohttp.ClientSession) -> None:
        self._now = now
        self._settings = settings
        self._again = again
        self._keys = {key.name: key for key in now.keys}
        self._jobs: dict[str, BatchJob] = {}  # in the order of their turns
        self._ended: dict[str, set[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[str] = Counter()
        self._in_flight_bytes = 0
        self._sent: Counter[str] = Counter()
        self._run = secrets.token_hex(8)
        self._published = BatchLoad("")
        self._seen: Mapping[str, ServiceReport] = {}
        self._drafts_due_s = time.monotonic()

    def run_once(self) -> None:
        """Begin new batches, finish completed ones, and send the requests that there is room for. Raises `OSError`."""
        shown = state.read(self._now.paths.status, Report)
        self._seen = {service.name: service for service in shown.services} if shown else {}
        if time.monotonic() >= self._drafts_due_s:  # they count towards `files_per_key`
            self._drafts_due_s = time.monotonic() + DRAFTS_EVERY_S
            _remove_drafts(self._settings)
        for owned in owners(self._settings):
            for batch in owned.unfinished(self._ended.setdefault(owned.owner, set())):
                try:
                    self._advance(owned, batch)
                except (OSError, msgspec.MsgspecError) as error:  # the others continue
                    log.event(_LOG, logging.ERROR, "batch waits", batch=batch.id, why=str(error))
        self.send()
        load = BatchLoad(self._run, dict(self._sent), dict(self._in_flight))
        if load != self._published and state.show(self._now.paths.batch_load, load):
            self._published = load

    def _advance(self, owned: Owned, batch: Batch) -> None:
        job = self._jobs.get(batch.id)
        if batch.ends_as:  # its worker died while finishing it
            finish(owned, batch)
            return
        now_s = time.time()
        if job is None:
            if self._has_its_turn_later(owned.owner, batch, now_s):
                return
            job = self._begin(owned, batch)
            if job is None:
                return
        if batch.status == "cancelling" and job.batch.cancelling_at is None:
            job.batch = msgspec.structs.replace(job.batch, status="cancelling", cancelling_at=batch.cancelling_at)
            owned.update(job.batch)
        ending = self._ending(job, now_s)
        if not ending or job.in_flight:
            job.save(time.monotonic())
            return
        del self._jobs[batch.id]
        job.end(ending)
        log.event(_LOG, logging.INFO, "batch ended", batch=batch.id, key=owned.owner, status=ending)

    def _has_its_turn_later(self, owner: str, batch: Batch, now_s: float) -> bool:
        """Whether it waits for older batches of its key: the requests of all that have begun are in memory."""
        if batch.status == "cancelling" or now_s >= batch.expires_at or not self._admitted(owner, now_s):
            return False  # it ends at once
        others = (job for job in self._jobs.values() if job.owned.owner == owner)
        begun = sum(job.counts().total for job in others if not job.requests.closed)  # those may wait for a month
        return begun >= _BATCHES_IN_MEMORY * self._settings.requests_per_batch

    def _begin(self, owned: Owned, batch: Batch) -> BatchJob | None:
        """Validate its input and begin or resume it; None if it has failed."""
        key, most = self._keys.get(owned.owner), self._settings.requests_per_batch
        begun = batch.in_progress_at is not None
        try:
            data = owned.path(batch.input_file_id, "data")
            found = read_requests(data, batch.endpoint, self._now, key, most, begun=begun)
        except FileNotFoundError:
            found = Faults((LineFault("file_not_found", f"{batch.input_file_id} is gone"),))
        if isinstance(found, Faults):
            if any(owned.has_results(batch, kind) for kind in ("output", "errors")):
                finish(owned, msgspec.structs.replace(batch, ends_as="failed", errors=found))
                return None
            failed = {"status": "failed", "failed_at": int(time.time()), "errors": found}
            owned.update(msgspec.structs.replace(batch, **failed))
            return None
        job = self._jobs[batch.id] = BatchJob.of(owned, batch, found)
        owned.update(job.batch)
        log.event(_LOG, logging.INFO, "batch", batch=batch.id, key=owned.owner, requests=len(found.custom_ids))
        if found.closed:
            log.event(_LOG, logging.WARNING, "batch waits", batch=batch.id, why=found.closed)
        return job

    def _ending(self, job: BatchJob, now_s: float) -> str:
        """The status with which it is to end once none of its requests is in flight; empty while it continues."""
        if job.errors.expired:  # its worker died, or the disk was full, between these lines and the batch's record
            return "expired"
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
        """Send one request of each batch in turn, while there is room at the replicas and in memory.

        For the first line that does not fit, others leave room beside all but its own batch's: shorter ones would
        always leave it too little, and its own may be long in flight.
        """
        now_s = time.time()
        open_jobs = [job for job in self._jobs.values() if job.pending and not job.requests.closed]
        open_jobs = [job for job in open_jobs if time.monotonic() >= job.resume_s and not self._ending(job, now_s)]
        left = {name: self._room(name) for name in {job.requests.service for job in open_jobs}}
        waiting: BatchJob | None = None
        while open_jobs := [job for job in open_jobs if job.pending and left[job.requests.service] > 0]:
            job = open_jobs.pop(0)
            with_it = self._in_flight_bytes + job.next_bytes()
            if self._in_flight_bytes and with_it > IN_FLIGHT_BYTES:
                waiting = waiting or job
                continue
            if waiting and with_it - waiting.in_flight_bytes + waiting.next_bytes() > IN_FLIGHT_BYTES:
                continue
            open_jobs.append(job)
            self._jobs[job.batch.id] = self._jobs.pop(job.batch.id)  # its next turn is after all others
            left[job.requests.service] -= 1
            self._in_flight_bytes = with_it
            job.in_flight_bytes += job.next_bytes()
            task = asyncio.create_task(self._ask(job, job.pending.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _room(self, name: str) -> int:
        own = self._in_flight[name]
        return room(self._now.section.services[name], self._seen.get(name), own) - own

    async def _ask(self, job: BatchJob, index: int) -> None:
        """Send one request; its answer is written, or it is sent again later."""
        service = job.requests.service
        job.in_flight += 1
        self._in_flight[service] += 1
        self._sent[service] += 1
        try:
            answered = await self._write(job, index)
        except (OSError, msgspec.MsgspecError) as error:
            log.event(_LOG, logging.ERROR, "results not written", batch=job.batch.id, why=str(error))
            answered = False
        finally:
            job.in_flight -= 1
            self._in_flight[service] -= 1
            self._in_flight_bytes -= job.requests.places[index][1]
            job.in_flight_bytes -= job.requests.places[index][1]
        if answered:
            self.send()
        else:
            job.pending.append(index)
            job.resume_s = max(job.resume_s, time.monotonic() + _RETRY_S)

    async def _write(self, job: BatchJob, index: int) -> bool:
        """Send a request and write its answer; False if it is to be sent again. Raises `OSError` if writing fails."""
        try:
            status, wait_s, body = await self._post(job, job.body(index))
        except aiohttp.ClientConnectorError:
            return False  # HAProxy is being started: the request was not sent
        except (aiohttp.ClientError, TimeoutError) as error:
            job.attempts[index] += 1
            if job.attempts[index] < _ATTEMPTS:
                return False
            job.give_up(index, str(error) or type(error).__name__)
            return True
        if status in _RETRIED:
            job.attempts[index] += status not in _NOT_STARTED
            job.resume_s = time.monotonic() + (wait_s if status == HTTPStatus.TOO_MANY_REQUESTS else 0.0)
            if job.attempts[index] < _ATTEMPTS:
                return False
        job.answer(index, status, body)
        return True

    async def _post(self, job: BatchJob, body: bytes) -> tuple[int, float, bytes]:
        """The status, the seconds of Retry-After, and the body of the answer."""
        headers = {
            "content-type": "application/json",
            "x-gateway-service": job.requests.service,
            "x-gateway-client": "batch",
            "x-gateway-batch": "1",
            **({"x-gateway-key": job.owned.owner} if job.owned.owner else {}),
        }
        async with self._again.post(f"http://haproxy{job.batch.endpoint}", data=body, headers=headers) as answer:
            after = answer.headers.get("retry-after", "")
            wait_s = min(_LONGEST_WAIT_S, float(after)) if after.isascii() and after.isdigit() else 0.0
            return answer.status, wait_s, await answer.read()


def longest_silence_s(services: Iterable[ServiceSection]) -> float:
    """How long a request may be without an answer: in the queue, until there is a replica, and then there."""
    waits_s = (one.queue_deadline_s + one.cold_start_deadline_s + one.response_timeout_s for one in services)
    return max(waits_s) + _TO_SPARE_S


def client(socket: Path, silence_s: float) -> aiohttp.ClientSession:
    """A client to HAProxy for the requests of all keys. It must be made within a running event loop and closed."""
    return aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(str(socket), limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),  # any other would send one key's cookies with the next one's request
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence_s),
    )


async def _work(now: Accepted, settings: BatchSettings, files: Files) -> None:
    """Run until stopped, or until the supervisor is gone; requests then in flight are sent again by the next worker."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    parent = os.getppid()
    silence_s = longest_silence_s(now.section.services.values())
    async with client(files.again_socket, silence_s) as again:
        while not stop.is_set() and os.getppid() == parent:
            with state.locked(now.paths.batch_lock) as ours:
                worker = Worker(now, settings, again)
                while ours and not stop.is_set() and os.getppid() == parent:
                    try:
                        worker.run_once()
                    except OSError as error:
                        why = error.strerror or str(error)
                        log.event(_LOG, logging.ERROR, "batches wait", file=str(error.filename), why=why)
                    await _sleep(stop, _POLL_S)
            await _sleep(stop, _LOCK_S)


async def _sleep(stop: asyncio.Event, time_s: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), time_s)
    except TimeoutError:
        return


def _remove_drafts(settings: BatchSettings) -> None:
    """Remove uploads whose gateway was killed."""
    for owned in owners(settings):
        for path in owned.directory.glob("*.draft"):
            with suppress(FileNotFoundError):  # it has become a file meanwhile
                if path.stat().st_mtime < time.time() - _DRAFT_S:
                    path.unlink()


@click.command()
@click.option("--services", "services_path", required=True, type=click.Path(path_type=Path))
@click.option("--accepted", "kept", required=True, type=click.Path(path_type=Path))
@click.option("--run-directory", required=True, type=click.Path(path_type=Path))
def main(services_path: Path, kept: Path, run_directory: Path) -> None:
    """Process the batches of a gateway."""
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
