"""The server of the page: read-only, on loopback or a Unix socket, for those who have the token or come by a proxy.

Other users of the machine can reach a port on loopback, and pages of other sites can make a browser ask for it. So
without the token nothing is answered, the Host must be ours (DNS rebinding), and the page loads nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from explsched.log import event
from slurm_plugin.audit_file import AuditEntry, AuditError, RecentEntries, Value
from slurm_plugin.config import Config
from slurm_plugin.state.metrics import METRICS_FILE
from slurm_plugin.state.published import FILE, State, ask, read
from slurm_plugin.state.serving import Visible
from slurm_plugin.web import answers
from slurm_plugin.web.gateway import GatewayFiles

_LOG = logging.getLogger("explsched.web")
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_MOST_VIEWERS = 256
_MOST_ANSWERS = 4096
_DAY_S = 86_400.0
_MOST_CHANGES = 50_000
_LOOK_S = 1.0
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Access(Struct, frozen=True):
    """Who may look: who has the token (all that this process may read), or whom the proxy names in `user_header`."""

    token: str = ""
    user_header: str = ""
    hosts: frozenset[str] = frozenset()

    @property
    def cookie(self) -> str:
        """Its name: browsers give cookies to every port of a host, and each page has a token of its own."""
        return f"explsched_{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    def check_host(self, request: web.Request) -> None:
        """Raise `HTTPForbidden` unless the request names a host of ours."""
        if self.hosts and request.host not in self.hosts:
            told = f"unknown host {request.host!a} for this page, accepted: {', '.join(sorted(self.hosts))}\n"
            raise web.HTTPForbidden(text=told)

    def user(self, request: web.Request) -> str | None:
        """The viewer's name, "" for whoever has the token. Raises `HTTPUnauthorized` or `HTTPForbidden`."""
        self.check_host(request)
        if self.user_header:
            name = request.headers.get(self.user_header, "")
            if not name:
                raise web.HTTPUnauthorized(text=f"the proxy names no user in {self.user_header}\n")
            return name
        given = request.cookies.get(self.cookie, "")
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), self.token.encode()):
            raise web.HTTPUnauthorized(text="open the address with the token that `sexplsched web` has printed\n")
        return ""


class CachedView(Struct, frozen=True):
    """What a viewer may see now. `fault` says why there are no changes."""

    state: State
    changes: Sequence[AuditEntry]
    fault: str


class Answer(Struct, frozen=True):
    """What is sent, compressed, and its mark: who has that mark already is sent nothing."""

    body: bytes
    etag: str

    @classmethod
    def of(cls, told: object) -> Answer:
        """Made of what JSON can hold; numbers that are no numbers become null."""
        return cls.of_text(msgspec.json.encode(told))

    @classmethod
    def of_text(cls, text: bytes) -> Answer:
        """Made of what is sent as it is."""
        return cls(gzip.compress(text, 6, mtime=0), f'"{hashlib.blake2b(text, digest_size=12).hexdigest()}"')

    def response(self, request: web.Request, kind: str = "application/json") -> web.StreamResponse:
        """To a request: all of it, or that nothing has changed."""
        if request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=304, headers={"ETag": self.etag})
        headers = {"ETag": self.etag}
        body = self.body
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            body = gzip.decompress(body)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)


def _queue(look: CachedView, request: web.Request) -> object:
    given = request.query
    words = (given.get("text", ""), given.get("state", ""), given.get("sort", ""))
    return answers.jobs(look.state, answers.JobQuery(*words, offset=_number(request, "offset")))


def _job(look: CachedView, request: web.Request) -> object:
    found = answers.job(look.state, int(request.match_info["job_id"]), look.changes)
    if found is None:
        raise web.HTTPNotFound(text="no such job is waiting or running\n")
    return found


def _sweep(look: CachedView, request: web.Request) -> object:
    found = answers.sweep(look.state, request.query.get("name", ""), request.query.get("user", ""), look.changes)
    if found is None:
        told = "no job of this sweep waits or runs; `sexplsched sweep show NAME` shows past ones\n"
        raise web.HTTPNotFound(text=told)
    return found


def _changes(look: CachedView, request: web.Request) -> object:
    found = answers.audit(look.changes, request.query.get("text", ""), _number(request, "offset"))
    return {**found, "fault": look.fault}


ANSWERS: Mapping[str, Callable[[CachedView, web.Request], object]] = {
    "summary": lambda look, _request: answers.summary(look.state),
    "nodes": lambda look, _request: answers.nodes(look.state),
    "jobs": _queue,
    r"jobs/{job_id:\d{1,10}}": _job,
    "sweeps": lambda look, _request: answers.sweeps(look.state),
    "sweep": _sweep,
    "plan": lambda look, _request: answers.plan(look.state),
    "audit": _changes,
}
"""By path below /api."""


class Page:
    """Answers from the newest state, which is read once whenever the daemon has replaced it.

    An answer is made once for all viewers who may see the same.
    """

    def __init__(self, config: Config, access: Access, gateways: Sequence[Path] = ()) -> None:
        """`gateways`: their state directories."""
        self._config = config
        self._access = access
        self._lock = asyncio.Lock()
        self._stamp: tuple[int, int] | None = None
        self._visible: Visible | None = None
        self._looks: dict[str, CachedView] = {}
        self._answers: dict[tuple[str, str], Answer] = {}
        self._recent = RecentEntries(config.audit.file, _DAY_S, _MOST_CHANGES)
        self._changes: Sequence[AuditEntry] = ()
        self._fault = ""
        self._gateways = tuple(map(GatewayFiles, gateways))
        static = files(__package__).joinpath("static")
        self._static = {item.name: Answer.of_text(item.read_bytes()) for item in static.iterdir()}

    def app(self) -> web.Application:
        """The routes. All of them only read."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/login", self._login)
        app.router.add_get("/", self._index)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get("/metrics", self._metrics)
        for name, answer in ANSWERS.items():
            app.router.add_get(f"/api/{name}", self._answering(answer))
        app.router.add_get("/api/gateways", self._shown_gateways)
        app.cleanup_ctx.append(self._watching)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            if request.path != "/login":
                _ = self._access.user(request)
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        response.headers.update(_HEADERS)
        return response

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """The printed address: the token becomes a cookie that no script can read, and leaves the address."""
        access = self._access
        access.check_host(request)
        given = request.query.get("token", "")
        if access.user_header or not hmac.compare_digest(given.encode(), access.token.encode()):
            raise web.HTTPUnauthorized(text="this token is not valid any more\n")
        response = web.HTTPSeeOther("/")
        response.set_cookie(access.cookie, access.token, httponly=True, samesite="Strict", path="/")
        raise response

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._static["index.html"].response(request, "text/html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._static:
            raise web.HTTPNotFound
        return self._static[name].response(request, _TYPES[Path(name).suffix])

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        try:
            text = await asyncio.to_thread((self._config.state.directory / METRICS_FILE).read_bytes)
        except OSError as error:
            raise web.HTTPServiceUnavailable(text=f"no metrics: {error.strerror}\n") from error
        return web.Response(body=text, content_type="text/plain", charset="utf-8")

    def _answering(self, answer: Callable[[CachedView, web.Request], object]) -> _Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            """One of `ANSWERS`. The age of the state goes beside it, so that what has not changed has not changed."""
            async with self._lock:
                await asyncio.to_thread(self._refresh)
                if self._visible is None:
                    where = f"{self._config.state.directory}, or not what this user and this release may read"
                    raise web.HTTPServiceUnavailable(text=f"no daemon publishes in {where}\n")
                viewer = self._access.user(request) or ""
                who = viewer if self._visible.state.private else ""
                key = (who, request.path_qs)
                if key not in self._answers:
                    if len(self._answers) >= _MOST_ANSWERS:
                        self._answers.clear()
                    self._answers[key] = Answer.of(answer(self._look(who), request))
                response = self._answers[key].response(request)
                response.headers["X-State-Age"] = f"{self._visible.state.age_s(time.time()):.1f}"
            return response

        return handler

    def _look(self, user: str) -> CachedView:
        """What a user may see; "" is whoever has the token: what this process may read its owner may see."""
        if self._visible is None:
            raise ValueError("nothing is published")
        if user not in self._looks:
            if len(self._looks) >= _MOST_VIEWERS:
                self._looks.clear()
            if user:
                own = _own_changes(self._visible, self._changes, user)
                self._looks[user] = CachedView(self._visible.of(user), own, self._fault)
            else:
                self._looks[user] = CachedView(self._visible.state, self._changes, self._fault)
        return self._looks[user]

    def _refresh(self) -> None:
        try:
            status = (self._config.state.directory / FILE).stat()
            stamp = status.st_mtime_ns, status.st_ino
        except OSError:
            self._visible = self._stamp = None
            return
        if stamp == self._stamp:
            return
        found = read(self._config.state.directory) or ask(self._config.state.socket)
        self._visible, self._stamp = Visible(found) if found else None, stamp
        self._looks.clear()
        self._answers.clear()
        try:
            self._changes, self._fault = tuple(self._recent.now(time.time())), ""
        except AuditError as error:
            self._changes, self._fault = (), str(error)
            event(_LOG, logging.INFO, "no audit entries", why=str(error))

    async def _watching(self, _app: web.Application) -> AsyncIterator[None]:
        """Look at each gateway every second for as long as the page is served; one that hangs keeps none waiting."""
        loop = asyncio.get_running_loop()
        threads = ThreadPoolExecutor(max(1, len(self._gateways)))  # those that hang leave others for the page itself

        async def watch(gateway: GatewayFiles) -> None:
            while True:
                await loop.run_in_executor(threads, gateway.look, time.time())
                await asyncio.sleep(_LOOK_S)

        watching = asyncio.gather(*map(watch, self._gateways))
        yield
        _ = watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        threads.shutdown(wait=False)

    async def _shown_gateways(self, request: web.Request) -> web.StreamResponse:
        """Where Slurm hides jobs, a gateway is shown to its owner only: it names jobs."""
        user, now_s = self._access.user(request), time.time()
        async with self._lock:
            await asyncio.to_thread(self._refresh)
            hides = self._visible is None or bool(self._visible.state.private)
        shown = [one for one in self._gateways if not user or not hides or one.owner == user]
        return Answer.of({"gateways": [one.told(now_s) for one in shown]}).response(request)


def _own_changes(visible: Visible, changes: Sequence[AuditEntry], user: str) -> Sequence[AuditEntry]:
    """Those of the user's jobs, with no id of other users' jobs in any text where Slurm hides them."""
    hidden = visible.hidden_from(user, {entry.job: entry.user for entry in changes if entry.job is not None})

    def masked(value: Value) -> Value:
        return hidden.masked(value) if isinstance(value, str) else value

    return [
        replace(
            entry,
            before=masked(entry.before),
            after=masked(entry.after),
            reason=hidden.masked(entry.reason),
            refused=hidden.masked(entry.refused),
        )
        for entry in changes
        if entry.user == user
    ]


def _number(request: web.Request, name: str) -> int:
    text = request.query.get(name, "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise web.HTTPBadRequest(text=f"{name}: expected a number\n")
    return int(text)
