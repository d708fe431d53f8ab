"""How a running gateway takes its services file again: when a command asks through two small files, or on SIGHUP.

Files and not a signal for commands, because the gateway may run on another node, and a command wants an answer. A wrong
file leaves in force what is.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from explsched import log
from explsched.atomic_file import replace_file
from explsched.errors import ExplschedError
from explsched.strict_yaml import ConfigError
from inference_gateway import accepted
from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """What became of a request. `fault` is empty if the file is in force, else why it is not."""

    request: str
    fault: str


def ask(paths: GatewayPaths) -> str:
    """Ask; returns the request's name. Raises `GatewayError`."""
    request = secrets.token_hex(8)
    try:
        replace_file(paths.reload, request)
    except OSError as error:
        raise GatewayError(f"{paths.reload}: cannot be written: {error.strerror}") from error
    return request


def asked(paths: GatewayPaths) -> str | None:
    """The request that waits for an answer; None if there is none."""
    try:
        return paths.reload.read_text(encoding="ascii")
    except FileNotFoundError:
        return None


def answer(paths: GatewayPaths, request: str, fault: str) -> None:
    """Say what became of a request; it waits no more."""
    state.save(paths.reloaded, ReloadResult(request, fault))
    paths.reload.unlink(missing_ok=True)


def outcome(paths: GatewayPaths, request: str) -> ReloadResult | None:
    """What became of this request; None as long as nobody has answered it."""
    found = state.read(paths.reloaded, ReloadResult)
    return found if found is not None and found.request == request else None


_LOG = logging.getLogger("explsched.gateway")


@dataclass(slots=True)
class Revision:
    """What is in force now. `put` brings another one in force, or raises and leaves things as they are."""

    now: Accepted
    put: Callable[[Accepted], None]
    _asked: bool = False

    def check_now(self) -> None:
        """Take the file at the next `check`."""
        self._asked = True

    def check(self) -> None:
        """Take the services file again if a signal or a command asks for it, and answer the command."""
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
            log.event(_LOG, logging.ERROR, "services file not taken, what was in force stays", why=fault)
        if request is not None:
            answer(self.now.paths, request, fault)

    def _take(self) -> None:
        new = accepted.read(self.now.services_path, self.now.slot)
        fault = accepted.unchangeable(self.now.section, new.section)
        if fault:
            raise ConfigError(f"{self.now.services_path}: {fault} while the gateway is up")
        self.put(new)
        self.now = new
