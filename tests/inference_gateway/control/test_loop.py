"""The process of the control plane: when it ticks, and for whom."""

import os
import signal
from pathlib import Path
from typing import cast

import pytest

from inference_gateway.control import loop
from inference_gateway.control.control_plane import ControlPlane
from inference_gateway.control.report import Report, ServiceReport
from inference_gateway.dataplane.endpoints import Wake, send
from inference_gateway.dataplane.files import Files


def test_a_service_that_cannot_be_started_has_one_tick_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm refuses its job, and requests wait: the activator calls all the while."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(loop, "TICK_S", 0.2)
    files = Files(tmp_path)
    refused = ServiceReport("cold", 0, 0, 0, 1, 0, 8, "", 1, 0, 1, 30.0, given_up=False, next_in_s=None, replicas=())
    ticks: list[frozenset[str]] = []

    class Control:
        def adopt(self, now_s: float) -> None:
            """Nothing to adopt."""

        def tick(self, now_s: float, called: frozenset[str] = frozenset()) -> Report:
            ticks.append(called)
            send(files.control_socket, Wake("cold", 1))
            if len(ticks) == 5:
                monkeypatch.setattr(os, "getppid", lambda: -1)  # the supervisor is gone
            return Report("g", "/run", now_s, closing=False, services=(refused,))

        def end(self, now_s: float) -> None:
            """Nothing to count."""

    loop.ControlProcess(files).run(cast("ControlPlane", Control()))
    assert ticks == [frozenset(), frozenset({"cold"}), *[frozenset()] * 3]
