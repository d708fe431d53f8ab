import socket
from pathlib import Path

import pytest

from slurm_plugin.daemon import notify


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
