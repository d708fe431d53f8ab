"""Takes the services file again when asked to; a wrong one leaves in force what is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from explsched import log
from explsched.errors import ExplschedError
from explsched.strict_yaml import ConfigError
from inference_gateway import accepted
from inference_gateway.accepted import Accepted
from inference_gateway.replicas.places import Places
from inference_gateway.supervisor import reloading

_LOG = logging.getLogger("explsched.gateway")


@dataclass(slots=True)
class Revision:
    """What is in force now. `put` brings another one in force, or raises and leaves things as they are."""

    now: Accepted
    services_path: Path
    places: Places
    put: Callable[[Accepted], None]
    _asked: bool = False

    def look_now(self) -> None:
        """Take the file at the next `tend`."""
        self._asked = True

    def tend(self) -> None:
        """Take the services file again if a signal or a command asks for it, and answer the command."""
        request = reloading.asked(self.places)
        if not self._asked and request is None:
            return
        self._asked = False
        fault = ""
        try:
            self._take()
            log.event(_LOG, logging.INFO, "services file taken", file=str(self.services_path))
        except (ExplschedError, OSError) as error:
            fault = str(error)
            log.event(_LOG, logging.ERROR, "services file not taken, what was in force stays", why=fault)
        if request is not None:
            reloading.answer(self.places, request, fault)

    def _take(self) -> None:
        new = accepted.read(self.services_path)
        fault = accepted.unchangeable(self.now.section, new.section)
        if fault:
            raise ConfigError(f"{self.services_path}: {fault} while the gateway is up")
        self.put(new)
        self.now = new
