"""Whose is a port: what the kernel's tables say, and how two who seem to have it are told apart."""

import os
import socket

import pytest

from inference_gateway.replicas.ports import Listener, Taken, found_in, taken
from tests.inference_gateway.strangers import UID, stranger

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
PORT = 0x4E20
OURS, THEIRS = 1000, 1001
ANY4, LOOP4, OTHER4 = "00000000", "0100007F", "0200007F"
ANY6, LOOP6 = "0" * 32, "0" * 24 + "01000000"
MAPPED = "0000000000000000FFFF00000100007F"


def row(address: str, uid: int, inode: int, state: str = "0A", port: int = PORT) -> str:
    return (
        f"   1: {address}:{port:04X} {'0' * len(address)}:0000 {state} 0:0 00:0 0 {uid:5d} 0 {inode} 1 f 100 0 0 10 0"
    )


@pytest.mark.parametrize(
    ("rows", "address", "found"),
    [
        ([], "127.0.0.1", ()),
        ([row(LOOP4, OURS, 7)], "127.0.0.1", ((OURS, 7),)),
        ([row(ANY4, OURS, 7), row(ANY6, OURS, 8)], "127.0.0.1", ((OURS, 7),)),
        ([row(MAPPED, THEIRS, 7)], "127.0.0.1", ((THEIRS, 7),)),
        ([row(LOOP6, OURS, 7), row(ANY6, THEIRS, 8)], "::1", ((OURS, 7),)),
        ([row(ANY6, OURS, 7)], "::1", ((OURS, 7),)),
        ([row(LOOP4, OURS, 7), row(ANY4, THEIRS, 8)], "127.0.0.1", ((OURS, 7),)),
        ([row(ANY6, OURS, 7), row(LOOP4, THEIRS, 8)], "127.0.0.1", ((THEIRS, 8),)),
        ([row(ANY4, OURS, 7), row(ANY4, OURS, 8)], "127.0.0.1", ((OURS, 7), (OURS, 8))),
        ([row(OTHER4, THEIRS, 7)], "127.0.0.1", ()),
        ([row(LOOP4, THEIRS, 7, state="01")], "127.0.0.1", ()),
        ([row(LOOP4, THEIRS, 7, port=PORT + 1)], "127.0.0.1", ()),
    ],
)
def test_what_the_tables_say(rows: list[str], address: str, found: tuple[tuple[int, int], ...]) -> None:
    expected = Taken(address, frozenset(Listener(uid, inode) for uid, inode in found))
    assert found_in([HEADER, *rows, HEADER], PORT) == expected


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "::1")]
)
def test_a_socket_of_ours(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        port = listener.getsockname()[1]
        assert taken(port).listeners == frozenset(), "bound and not listening"
        listener.listen()
        found = taken(port)
        assert found.listeners == {Listener(os.getuid(), os.fstat(listener.fileno()).st_ino)}
        assert all(one.ours for one in found.listeners)
        with socket.create_connection((found.address, port), timeout=5):
            assert taken(port) == found


def test_a_socket_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    with stranger(0) as other:
        (found,) = taken(other.port).listeners
        assert found.uid == UID
        assert not found.ours
        monkeypatch.setattr(os, "getuid", lambda: UID)
        assert found.ours
