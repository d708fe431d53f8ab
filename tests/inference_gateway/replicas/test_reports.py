"""Tokens from the bytes of answers, and the file they are reported in."""

import json
from pathlib import Path

import pytest

from inference_gateway.replicas.reports import AnswerReader, Tokens, UsageCounter, usage_of

USAGE = {"prompt_tokens": 12, "total_tokens": 19, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
WORD = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


def answer(usage: object, text: str = "x") -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode()


LAST = b"data: " + answer(USAGE) + b"\n\n"


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("received", "tokens"),
    [
        (HEAD + answer(USAGE), Tokens(1, 12, 7)),
        (HEAD + answer(USAGE, "y" * 100_000), Tokens(1, 12, 7)),
        (HEAD + answer({"input_tokens": 5, "output_tokens": 6}), Tokens(1, 5, 6)),
        (HEAD + answer(USAGE, '"usage": {"prompt_tokens": 0, "completion_tokens": 0}'), Tokens(1, 12, 7)),
        (HEAD + chunked(WORD, WORD, LAST, b"data: [DONE]\n\n"), Tokens(1, 12, 7)),
        (HEAD + chunked(LAST[:50], LAST[50:]), Tokens(1, 12, 7)),
        (HEAD + chunked(*[WORD] * 5, b"data: [DONE]\n\n"), Tokens(1, 0, 5, 1)),
        (HEAD + chunked(*[WORD] * 480)[:-5], Tokens(1, 0, 480, 1)),
        (HEAD + b'{"usage": null}', Tokens(1)),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", Tokens(1)),
        (b"", Tokens(1)),
    ],
)
def test_tokens_of_an_answer(received: bytes, size: int, tokens: Tokens) -> None:
    reader = AnswerReader()
    for start in range(0, len(received), size):
        reader.read(received[start : start + size])
    assert reader.tokens() == tokens


def test_a_report_has_the_sums_of_a_run(tmp_path: Path) -> None:
    assert usage_of(tmp_path) is None
    counter = UsageCounter()
    counter.write(tmp_path)
    assert usage_of(tmp_path) is None, "there is nothing to tell"
    counter.add("alice", Tokens(1, 2, 3))
    counter.add("alice", Tokens(1, 4, 5, 1))
    counter.add("bob", Tokens(1))
    counter.write(tmp_path)
    found = usage_of(tmp_path)
    assert found is not None
    assert (found.run, found.by_key) == (counter.run, {"alice": Tokens(2, 6, 8, 1), "bob": Tokens(1)})
    (tmp_path / "usage").write_text('{"run": 1}')
    assert usage_of(tmp_path) is None
