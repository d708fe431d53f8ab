import signal
import socket
import time
from pathlib import Path

import pytest

from slurm_plugin.loop import Daemon, notify
from tests.slurm_kit import FakeSlurm


def test_systemd_hears_every_assignment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        notify("READY=1", "STATUS=policy srsf")
        assert systemd.recv(100) == b"READY=1\nSTATUS=policy srsf"


def test_abstract_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0explsched-test-notify")
        monkeypatch.setenv("NOTIFY_SOCKET", "@explsched-test-notify")
        notify("STOPPING=1")
        assert systemd.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/notify"])
def test_nobody_to_hear_is_no_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")


def test_a_daemon_that_waits_for_its_next_pass_tells_systemd_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_plugin.loop.WATCHDOG_S", 0.01)
    told: list[str] = []
    monkeypatch.setattr("slurm_plugin.loop.notify", lambda *words: told.extend(words))
    monkeypatch.setattr("slurm_plugin.loop.choose", lambda *_: FakeSlurm())
    config = tmp_path / "explsched.yaml"
    config.write_text(f"order: {{site_factor_file: {tmp_path}/site_factors.json}}\naudit: {{file: {tmp_path}/audit}}\n")
    daemon = Daemon(config, "info", None)
    now_s = time.monotonic()
    daemon.rest(now_s, now_s + 0.05)
    assert told[:3] == ["WATCHDOG=1"] * 3
    daemon.on_signal(signal.SIGUSR2, None)
    daemon.rest(now_s, now_s + 3600)  # returns
