"""Tokens from the bytes of answers, and the file they are reported in."""

import json
from pathlib import Path

import pytest

from inference_gateway.queueing import Stretch
from inference_gateway.replicas.reports import (
    AnswerReader,
    BodyReader,
    Tokens,
    UsageCounter,
    reading_of,
    report_reading,
    usage_of,
)

USAGE = {"prompt_tokens": 12, "total_tokens": 19, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}
NONE = {"input_tokens": 0, "output_tokens": 0}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
WORD = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


def answer(usage: object, text: str = "x") -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode()


LAST = b"data: " + answer(USAGE) + b"\n\n"
BEGUN = b'data: {"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":0}}}\n\n'
"""As llama.cpp writes Anthropic's streams: the prompt is in the first `usage` only."""
ENDED = b'data: {"usage":{"output_tokens":9},"type":"message_delta"}\n\n', b'data: {"type":"message_stop"}\n\n'
FEWER = BEGUN.replace(b":0", b":1"), ENDED[0].replace(b":9", b":0"), ENDED[1]
"""The count at the end is less than at the beginning."""


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
        (HEAD + chunked(*[WORD.replace(b"data: ", b"data:")] * 5), Tokens(1, 0, 5, 1)),
        (HEAD + chunked(BEGUN, *[WORD] * 5, *ENDED), Tokens(1, 25, 9)),
        (HEAD + chunked(BEGUN, *[WORD] * 480, *ENDED), Tokens(1, 25, 9)),
        (HEAD + chunked(FEWER[0], *[WORD] * 5, *FEWER[1:]), Tokens(1, 25, 1)),
        (HEAD + chunked(FEWER[0], *[WORD] * 480, *FEWER[1:]), Tokens(1, 25, 1)),
        (HEAD + chunked(BEGUN, *[WORD] * 5)[:-5], Tokens(1, 25, 5, 1)),
        (HEAD + chunked(BEGUN, *[WORD] * 480)[:-5], Tokens(1, 25, 480, 1)),
        (HEAD + b'{"usage": null}', Tokens(1)),
        (HEAD + json.dumps({"usage": USAGE, "tools": [{"properties": {"usage": NONE}}]}).encode(), Tokens(1, 12, 7)),
        (HEAD + json.dumps({"usage": USAGE, "tools": [{"usage": NONE}] * 300}).encode(), Tokens(1, 12, 7)),
        (HEAD + json.dumps({"tools": [{"usage": NONE}] * 300, "usage": USAGE}).encode(), Tokens(1, 12, 7)),
        (HEAD + json.dumps({"usage": USAGE, "prompt_token_ids": list(range(20_000))}).encode(), Tokens(1, 12, 7)),
        (HEAD + chunked(json.dumps({"usage": USAGE, "choices": ["y" * 9000]}).encode(), LAST), Tokens(1, 12, 7)),
        (HEAD + answer({"total_tokens": 8}), Tokens(1, 8)),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", Tokens(1)),
        (b"", Tokens(1)),
    ],
)
def test_tokens_of_an_answer(received: bytes, size: int, tokens: Tokens) -> None:
    reader = AnswerReader()
    for start in range(0, len(received), size):
        reader.read(received[start : start + size])
    assert reader.tokens() == tokens


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(
    "before", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", 2 * b"HTTP/1.1 103 Early Hints\r\na: b\r\n\r\n"]
)
@pytest.mark.parametrize(
    "received",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer(USAGE)) + answer(USAGE),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(answer(USAGE)),
    ],
)
def test_the_end_of_an_answer_is_seen_whatever_came_before_it(received: bytes, before: bytes, size: int) -> None:
    reader, text = AnswerReader(), before + received
    for start in range(0, len(text), size):
        assert not reader.ended
        reader.read(text[start : start + size])
    assert reader.ended
    assert reader.tokens() == Tokens(1, 12, 7)


def test_a_report_has_the_sums_of_a_run(tmp_path: Path) -> None:
    assert usage_of(tmp_path) is None
    counter = UsageCounter()
    counter.write(tmp_path)
    assert usage_of(tmp_path) is None, "there is nothing to tell"
    counter.add("alice", Tokens(1, 2, 3))
    counter.add("alice", Tokens(), Tokens(1, 0, 8))
    counter.write(tmp_path)
    found = usage_of(tmp_path)
    assert found is not None
    assert found.by_key == {"alice": Tokens(2, 2, 11)}, "with the open stream"
    counter.add("alice", Tokens(1, 4, 5, 1), Tokens(-1, 0, -8))
    counter.add("bob", Tokens(1))
    counter.write(tmp_path)
    found = usage_of(tmp_path)
    assert found is not None
    assert (found.run, found.by_key) == (counter.run, {"alice": Tokens(2, 6, 8, 1), "bob": Tokens(1)})
    (tmp_path / "usage").write_text('{"run": 1}')
    assert usage_of(tmp_path) is None


@pytest.mark.parametrize("size", [1, 9, 100_000])
@pytest.mark.parametrize(
    ("body", "streams"),
    [
        ({"messages": "x" * 300, "stream": True}, True),
        ({"stream": True, "messages": "x" * 300}, True),
        ({"messages": "x", "stream": False}, False),
        ({"messages": 'say {"stream": true}'}, False),
        ({"messages": 'say {"stream": true}', "stream": True}, True),
    ],
)
def test_a_body_says_whether_it_asks_for_a_stream(body: dict[str, object], size: int, streams: bool) -> None:  # noqa: FBT001
    text = json.dumps(body).encode()
    reader = BodyReader()
    for start in range(0, len(text), size):
        reader.read(text[start : start + size])
    assert (reader.size, reader.streams) == (len(text), streams)


def test_what_is_read_is_reported(tmp_path: Path) -> None:
    assert reading_of(tmp_path) == ()
    report_reading(tmp_path, [Stretch(4000.0, 0.5), Stretch(8.0, 0.25)])
    assert reading_of(tmp_path) == (Stretch(4000.0, 0.5), Stretch(8.0, 0.25))
    for nonsense in ("[[1, 0], [2, 1], [-1, 3]]", "[1]", "{", '{"a": 1}'):
        (tmp_path / "reading").write_text(nonsense)
        assert reading_of(tmp_path) in ((), (Stretch(2.0, 1.0),))
