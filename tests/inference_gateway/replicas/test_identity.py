"""Certificates: made once, read by nobody else, good for one name and one side."""

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import client_context
from inference_gateway.errors import GatewayError
from inference_gateway.replicas.identity import Authority, gateway_context
from inference_gateway.replicas.relay import server_context


def replica_files(directory: Path, authority: Authority, name: str) -> tuple[Path, Path]:
    """The files of a replica: its identity and the authority's certificate."""
    (directory / f"{name}.pem").write_text(authority.replica(name))
    (directory / "authority").write_text(authority.trust.authority)
    return directory / f"{name}.pem", directory / "authority"


async def _answer(context: ssl.SSLContext, ours: ssl.SSLContext, name: str) -> bytes:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ours, server_hostname=name)
        try:
            writer.write(b"secret")
            return await reader.read()
        finally:
            writer.close()


def answer(context: ssl.SSLContext, ours: ssl.SSLContext, name: str) -> bytes:
    """What a server says to `secret`."""
    return asyncio.run(_answer(context, ours, name))


def test_an_authority_is_made_once_in_files_of_its_user(tmp_path: Path) -> None:
    directory = tmp_path / "identity"
    first, second = Authority.of(directory), Authority.of(directory)
    assert first.trust == second.trust
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    assert "PRIVATE" not in repr(first)


def test_a_replica_is_known_by_its_own_name_alone(tmp_path: Path) -> None:
    authority = Authority.of(tmp_path / "identity")
    ours = gateway_context(tmp_path / "identity")
    theirs = server_context(*replica_files(tmp_path, authority, "chat-1"))
    assert answer(theirs, ours, "chat-1") == b"secret"
    with pytest.raises(ssl.SSLCertVerificationError):
        answer(theirs, ours, "chat-2")


def test_the_replica_of_another_gateway_is_a_stranger(tmp_path: Path) -> None:
    Authority.of(tmp_path / "identity")
    theirs = server_context(*replica_files(tmp_path, Authority.of(tmp_path / "other"), "chat-1"))
    with pytest.raises(ssl.SSLCertVerificationError):
        answer(theirs, gateway_context(tmp_path / "identity"), "chat-1")


def test_a_replica_serves_the_gateway_alone(tmp_path: Path) -> None:
    """Neither who has no certificate nor another replica, whose own is good for servers."""
    authority = Authority.of(tmp_path / "identity")
    theirs = server_context(*replica_files(tmp_path, authority, "chat-1"))
    nobody = ssl.create_default_context(cadata=authority.trust.authority)
    other, trusted = replica_files(tmp_path, authority, "chat-2")
    for client in (nobody, client_context(trusted, other)):
        try:
            said = answer(theirs, client, "chat-1")
        except OSError:  # with TLS 1.3 it may be told, or find the connection closed
            said = b""
        assert said == b""


def test_a_full_disk_leaves_no_half_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GatewayError, match="No space left"):
        Authority.of(tmp_path / "identity")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert Authority.of(tmp_path / "identity").replica("chat-1")


def test_of_two_that_make_one_at_once_both_have_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "identity"
    settled = os.fsync
    first: list[Authority] = []

    def meanwhile(handle: int) -> None:
        settled(handle)
        monkeypatch.undo()
        monkeypatch.setattr(os, "getpid", lambda: 1)
        first.append(Authority.of(directory))
        monkeypatch.undo()

    monkeypatch.setattr(os, "fsync", meanwhile)
    assert Authority.of(directory).trust == first[0].trust
    assert [path.name for path in tmp_path.iterdir()] == ["identity"]


@pytest.mark.parametrize("name", ["authority.pem", "authority.key"])
def test_files_that_are_none_are_named(tmp_path: Path, name: str) -> None:
    Authority.of(tmp_path / "identity")
    (tmp_path / "identity" / name).write_text("no key")
    with pytest.raises(GatewayError, match="identity: not the gateway's authority"):
        Authority.of(tmp_path / "identity")
