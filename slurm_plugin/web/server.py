"""The server of the page: read-only, on loopback or a Unix socket, for those who have the token or come by a proxy.

Other users of the machine can reach a port on loopback, and pages of other sites can make a browser ask for it. So
without the token nothing is answered, the Host must be ours (DNS rebinding), and the page loads nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

from aiohttp import web
from msgspec import Struct

from explsched.log import event
from slurm_plugin.audit import trail
from slurm_plugin.audit.entries import AuditEntry
from slurm_plugin.config import Config
from slurm_plugin.state.publish import METRICS_FILE
from slurm_plugin.state.published import FILE, State, read, seen_by
from slurm_plugin.web import answers

_LOG = logging.getLogger("explsched.web")
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".LICENSE": "text/plain"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_MOST_VIEWS = 64
_DAY_S = 86_400.0
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

    def user(self, request: web.Request) -> str | None:
        """The viewer's name, "" for whoever has the token. Raises `HTTPUnauthorized` or `HTTPForbidden`."""
        if self.hosts and request.host not in self.hosts:
            raise web.HTTPForbidden(text=f"this is no host of this page: {request.host}\n")
        if self.user_header:
            name = request.headers.get(self.user_header, "")
            if not name:
                raise web.HTTPUnauthorized(text=f"the proxy names no user in {self.user_header}\n")
            return name
        given = request.cookies.get(self.cookie, "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise web.HTTPUnauthorized(text="open the address with the token that `sexplsched web` has printed\n")
        return ""


class Page:
    """Answers from the newest state, read once whenever the daemon has replaced it."""

    def __init__(self, config: Config, access: Access) -> None:
        self._config = config
        self._access = access
        self._lock = asyncio.Lock()
        self._state: State | None = None
        self._stamp: tuple[int, int] | None = None
        self._views: dict[str, State] = {}
        self._audit: list[AuditEntry] = []
        self._audit_fault = ""
        self._static = {item.name: item.read_bytes() for item in files(__package__).joinpath("static").iterdir()}

    def app(self) -> web.Application:
        """The routes. All of them only read."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/login", self._login)
        app.router.add_get("/", self._index)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get("/metrics", self._metrics)
        for name, answer in {
            "summary": self._summary,
            "nodes": self._nodes,
            "jobs": self._jobs,
            "sweeps": self._sweeps,
            "sweep": self._sweep,
            "plan": self._plan,
            "audit": self._changes,
        }.items():
            app.router.add_get(f"/api/{name}", answer)
        app.router.add_get(r"/api/jobs/{job_id:\d{1,10}}", self._job)
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
        if access.hosts and request.host not in access.hosts:
            raise web.HTTPForbidden(text="this is no host of this page\n")
        given = request.query.get("token", "")
        if access.user_header or not hmac.compare_digest(given.encode(), access.token.encode()):
            raise web.HTTPUnauthorized(text="this token is not valid any more\n")
        response = web.HTTPSeeOther("/")
        response.set_cookie(access.cookie, access.token, httponly=True, samesite="Strict", path="/")
        raise response

    async def _index(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._static["index.html"], content_type="text/html", charset="utf-8")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._static:
            raise web.HTTPNotFound
        kind = _TYPES[Path(name).suffix]
        response = web.Response(body=self._static[name], content_type=kind, charset="utf-8")
        response.enable_compression()
        return response

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        try:
            text = await asyncio.to_thread((self._config.state.directory / METRICS_FILE).read_bytes)
        except OSError as error:
            raise web.HTTPServiceUnavailable(text=f"no metrics: {error.strerror}\n") from error
        return web.Response(body=text, content_type="text/plain", charset="utf-8")

    async def _summary(self, request: web.Request) -> web.StreamResponse:
        state = await self._seen(request)
        return _json(request, answers.summary(state, time.time()), "")

    async def _nodes(self, request: web.Request) -> web.StreamResponse:
        state = await self._seen(request)
        return _json(request, answers.nodes(state), _version(state))

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        state = await self._seen(request)
        given = request.query
        query = answers.JobQuery(
            given.get("text", ""), given.get("state", ""), given.get("sort", ""), _number(request, "offset", 0)
        )
        return _json(request, answers.jobs(state, query), _version(state))

    async def _job(self, request: web.Request) -> web.StreamResponse:
        state = await self._seen(request)
        found = answers.job(state, int(request.match_info["job_id"]), self._audited(request, state))
        if found is None:
            raise web.HTTPNotFound(text="no such job waits or runs\n")
        return _json(request, found, _version(state))

    async def _sweeps(self, request: web.Request) -> web.StreamResponse:
        state = await self._seen(request)
        return _json(request, answers.sweeps(state), _version(state))

    async def _sweep(self, request: web.Request) -> web.StreamResponse:
        state = await self._seen(request)
        found = answers.sweep(state, request.query.get("name", ""), request.query.get("user", ""))
        return _json(request, found, _version(state))

    async def _plan(self, request: web.Request) -> web.StreamResponse:
        state = await self._seen(request)
        return _json(request, answers.plan(state), _version(state))

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        state = await self._seen(request)
        found = answers.audit(self._audited(request, state), _number(request, "offset", 0))
        return _json(request, {**found, "fault": self._audit_fault}, _version(state))

    def _audited(self, request: web.Request, state: State) -> list[AuditEntry]:
        """The changes that the viewer may see: where Slurm hides jobs, those of his own."""
        user = self._access.user(request)
        return [entry for entry in self._audit if entry.user == user] if user and state.private else self._audit

    async def _seen(self, request: web.Request) -> State:
        """The newest state as the viewer may see it."""
        user = self._access.user(request) or ""
        async with self._lock:
            await asyncio.to_thread(self._refresh)
            if self._state is None:
                raise web.HTTPServiceUnavailable(text=f"no daemon publishes in {self._config.state.directory}\n")
            if not user:  # with the token: what this process may read its owner may see
                return self._state
            if user not in self._views:
                if len(self._views) >= _MOST_VIEWS:
                    self._views.clear()
                self._views[user] = await asyncio.to_thread(seen_by, self._state, user)
            return self._views[user]

    def _refresh(self) -> None:
        try:
            status = (self._config.state.directory / FILE).stat()
            stamp = status.st_mtime_ns, status.st_ino
        except OSError:
            self._state = self._stamp = None
            return
        if stamp == self._stamp:
            return
        self._state, self._stamp = read(self._config.state.directory), stamp
        self._views.clear()
        try:
            self._audit = list(trail.read(self._config.audit.file, time.time() - _DAY_S))
            self._audit_fault = ""
        except trail.AuditError as error:
            self._audit, self._audit_fault = [], str(error)
            event(_LOG, logging.INFO, "no audit entries", why=str(error))


def _version(state: State) -> str:
    return f'"{state.written_s}"'


def _number(request: web.Request, name: str, otherwise: int) -> int:
    text = request.query.get(name, str(otherwise))
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise web.HTTPBadRequest(text=f"{name}: expected a number\n")
    return int(text)


def _json(request: web.Request, told: object, version: str) -> web.StreamResponse:
    """Compressed; nothing where the viewer has this version already."""
    if version and request.headers.get("If-None-Match") == version:
        return web.Response(status=304, headers={"ETag": version})
    response = web.json_response(told, dumps=_dumps, headers={"ETag": version} if version else None)
    response.enable_compression()
    return response


def _dumps(told: object) -> str:
    return json.dumps(told, allow_nan=False)
