"""Which services file and key file a gateway takes, when it begins and when they are reloaded.

A reload is requested by SIGHUP, or by a command through two small files, because the gateway may run on another node
and the command needs an answer. If a new file is invalid, the accepted ones remain in force.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from explsched import log
from explsched.atomic_file import replace_file
from explsched.errors import ExplschedError
from explsched.strict_yaml import ConfigError
from inference_gateway import accepted
from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths

_LOG = logging.getLogger("explsched.gateway")


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The outcome of a reload request. `fault` is empty if the new file is in force, else it says why not."""

    request: str
    fault: str


def ask(paths: GatewayPaths) -> str:
    """Request a reload; returns the request's name. Raises `GatewayError`."""
    request = secrets.token_hex(8)
    try:
        replace_file(paths.reload, request)
    except OSError as error:
        raise GatewayError(f"{paths.reload}: cannot be written: {error.strerror}") from error
    return request


def asked(paths: GatewayPaths) -> str | None:
    """The pending reload request; None if there is none."""
    try:
        return paths.reload.read_text(encoding="ascii")
    except FileNotFoundError:
        return None


def answer(paths: GatewayPaths, request: str, fault: str) -> None:
    """Write the outcome of a request and remove it, unless another has come meanwhile."""
    state.save(paths.reloaded, ReloadResult(request, fault))
    if asked(paths) == request:
        paths.reload.unlink(missing_ok=True)


def outcome(paths: GatewayPaths, request: str) -> ReloadResult | None:
    """The outcome of this request; None until it has been answered."""
    found = state.read(paths.reloaded, ReloadResult)
    return found if found is not None and found.request == request else None


@dataclass(slots=True)
class Revision:
    """The configuration in force. `put` applies another one, or raises and changes nothing."""

    now: Accepted
    put: Callable[[Accepted], None]
    _asked: bool = False

    def check_now(self) -> None:
        """Reload at the next call of `check`."""
        self._asked = True

    def check_changed(self) -> None:
        """Reload at the next call of `check` if the files are not those in force, and let the other gateway do so."""
        try:
            if accepted.read(self.now.services_path, self.now.slot) == self.now:
                return
            self.ask_other()
        except ConfigError:
            pass  # the reload tells what is wrong with them
        self._asked = True

    def ask_other(self) -> None:
        """Let the other of two gateways reload, too: an edit in force at one alone would give them different keys."""
        for other in self.now.paths.slots:
            try:
                if other != self.now.paths and other.gateway.exists() and asked(other) is None:
                    ask(other)
            except (GatewayError, OSError) as error:
                log.event(_LOG, logging.ERROR, "the other gateway keeps its files until a reload", why=str(error))

    def check(self) -> None:
        """Reload the services file if a signal or a command has requested it, and answer the command."""
        request = asked(self.now.paths)
        if not self._asked and request is None:
            return
        self._asked = False
        fault = ""
        try:
            self._take()
            log.event(_LOG, logging.INFO, "services file taken", file=str(self.now.services_path))
        except (ExplschedError, OSError) as error:
            fault = str(error)
            log.event(_LOG, logging.ERROR, "services file refused, the accepted one stays in force", why=fault)
        if request is not None:
            answer(self.now.paths, request, fault)

    def _take(self) -> None:
        new = accepted.changed(self.now)
        self.put(new)
        self.now = new


def accepted_files(services_path: Path, kept: Path | None, slot: int) -> Accepted:
    """The files to begin with: those in force, saved in `kept`, by `gateway up` at first; else those of now.

    This version may not accept the saved ones. What is there now may be refused, by HAProxy, too, or in force at one of
    two gateways alone; `Supervisor.run` takes it by a reload.
    """
    try:
        last = None if kept is None else accepted.kept(kept, services_path, slot)
        if last is not None:
            last.check()
            return last
    except (ConfigError, GatewayError, OSError) as error:
        log.event(_LOG, logging.ERROR, "saved services file refused", file=str(kept), why=str(error))
    return accepted.read(services_path, slot)
