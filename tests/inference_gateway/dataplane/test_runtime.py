"""Orders to HAProxy: what counts as done in the words of old and new versions. A socket says what HAProxy would."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference_gateway.dataplane.runtime import RuntimeApi
from inference_gateway.errors import RefusedError

Says = Callable[[str], RuntimeApi]


@pytest.fixture
def says(directory: Path) -> Iterator[Says]:
    """A runtime socket that gives one answer to whatever it is told."""
    with socket.socket(socket.AF_UNIX) as listener:

        def answering(answer: str) -> RuntimeApi:
            path = directory / "runtime.sock"
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen()

            def serve() -> None:
                link, _ = listener.accept()
                with link:
                    while link.recv(4096):
                        pass
                    link.sendall(answer.encode())

            threading.Thread(target=serve, daemon=True).start()
            return RuntimeApi(path)

        yield answering


@pytest.mark.parametrize(
    ("commands", "answer"),
    [
        (["set server b/r state maint", "del server b/r"], "\nServer deleted.\n"),
        (["set server b/r state maint", "del server b/r"], "\nServer deleted.\n\n"),  # HAProxy 3
        (["add server b/r 127.0.0.1:1", "enable health b/r"], "New server registered.\n\n\n"),
        (["enable health b/r"], "\n"),
    ],
)
def test_done(says: Says, commands: list[str], answer: str) -> None:
    says(answer).order(commands)


@pytest.mark.parametrize(
    ("commands", "answer", "words"),
    [
        (["set server b/r state maint", "del server b/r"], "\nServer still has connections\n", "still has connections"),
        (["del server b/r", "del server b/s"], "Server deleted.\nNo such server.\n", "refused: No such server. "),
        (["enable health b/r"], "", "no answer"),
        (["enable health b/r", "enable health b/s"], "\n", "no answer"),
        (["del server b/r", "del server b/s"], "Server deleted.\n\n", "no answer"),
        (["enable health b/r"], "Server deleted.\n", "no answer"),
    ],
)
def test_refused(says: Says, commands: list[str], answer: str, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        says(answer).order(commands)
