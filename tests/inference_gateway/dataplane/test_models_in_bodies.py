"""Wherever `model` stands in a body, the gateway finds the one that the JSON's reader finds."""

import csv
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from inference_gateway.dataplane.configuration import model_tails
from inference_gateway.dataplane.runtime import RuntimeApi
from inference_gateway.dataplane.settings import GatewaySettings, ServiceSettings
from tests.inference_gateway.rig import Rig, gateway

NAMES = ("big", "small", "other")


@pytest.fixture(scope="module")
def rig(directory: Path) -> Iterator[Rig]:
    """No replicas: the service that refuses is the one that was found."""
    services = (ServiceSettings(name, paths=("/*",), cold_start_limit=0) for name in NAMES)
    with gateway(directory, *services, authentication="none", keys=()) as rig:
        yield rig


MESSAGES = [{"role": "user", "content": 'say "model": "small" {"model":"small"} \\ and, "model": "small"}'}]
TOOLS = [{"type": "function", "model": "small", "strict": True}]
OBJECTS = [
    {"model": "big"},
    {"model": "big", "messages": MESSAGES},
    {"messages": MESSAGES, "model": "big"},
    {"messages": MESSAGES, "model": "big", "max_tokens": 64, "temperature": -1.5e-3, "stream": True, "user": "x"},
    {"messages": MESSAGES, "model": "big", "stop": "\n", "n": None},
    {"messages": MESSAGES, "model": "big", "stop": ',"model":"small"}'},
    {"messages": MESSAGES, "model": "big", "tools": TOOLS},
    {"messages": MESSAGES, "model": "big", "metadata": {"model": "small"}},
    {"metadata": {"model": "small", "a": 1}, "model": "big"},
    {"tools": TOOLS, "model": "big", "metadata": {"model": "small", "max_tokens": 1}},
    {'a"model': "small", "model": "big", "x": 1},
    {"model": "big", 'a"model': "small"},
    {"model": "big", "a,": "model", "b": "small"},
    {"model": "big", "prompt": "y" * 20_000},
    {"prompt": "y" * 20_000, "model": "big"},
    {"prompt": ',"model":"small"' * 2000, "model": "big", **{f"k{number}": number for number in range(20)}},
]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n\t", " :  ")])
@pytest.mark.parametrize("number", range(len(OBJECTS)))
def test_the_model_is_the_objects_own(rig: Rig, number: int, separators: tuple[str, str]) -> None:
    body = json.dumps(OBJECTS[number], separators=separators)
    assert json.loads(body)["model"] == "big"
    assert rig.ask("POST", "/v1/chat/completions", body.encode()).status == 503
    assert rig.logged(service="big")["status"] == 503
    assert {line["service"] for line in rig.access_log()} == {"big"}


@pytest.mark.parametrize("body", [b'{"messages": [{"model":"big"}]}', b'{"x": {"model":"big"}}', b'["model","big"]'])
def test_a_model_that_is_not_the_objects_own_is_none(rig: Rig, body: bytes) -> None:
    assert rig.ask("POST", "/v1/chat/completions", body).status == 400


def test_a_body_made_to_be_hard_to_search_is_answered(rig: Rig) -> None:
    body = b'{"x":1' + b',"model":"big","a":1' * 2500 + b',"z":[]}'
    assert rig.ask("POST", "/v1/chat/completions", body).status == 503


# HAProxy's JSON parser gives up below 20 levels: what it cannot read is found by the search of the end, or not at all.
DEEP = "[" * 30 + "]" * 30
BUFFER_BYTES = GatewaySettings(Path("/nowhere"), 1).body_buffer_kib * 1024
LENGTHS = [length for tail in model_tails(BUFFER_BYTES) for length in (max(200, tail.least), tail.most)]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_model_at_the_end_is_found_in_bodies_of_every_length(rig: Rig, length: int) -> None:
    begin, end = f'{{"tools": {DEEP}, "prompt": "', '", "model": "big", "max_tokens": 64}'
    body = begin + "y" * (length - len(begin) - len(end)) + end
    assert len(body) == length
    before = asked_again(rig)
    assert rig.ask("POST", "/v1/chat/completions", body.encode()).status == 503
    assert asked_again(rig) == before, "HAProxy has found it alone"


def test_what_the_json_parser_cannot_read_shows_that_the_end_was_searched(rig: Rig) -> None:
    body = f'{{"tools": {DEEP}, "model": "big", "stop": []}}'
    before = asked_again(rig)
    assert rig.ask("POST", "/v1/chat/completions", body.encode()).status == 503
    assert asked_again(rig) == before + 1


@pytest.mark.parametrize("shift", range(len('{"model":"small"},')))
def test_where_the_buffer_cuts_a_body_it_has_no_end(rig: Rig, shift: int) -> None:
    """One of these bodies is cut behind the brace of an object that is not the whole."""
    body = json.dumps({"x": "y" * shift, "tools": [{"model": "small"}] * 5000, "model": "big"}, separators=(",", ":"))
    rig.ask("POST", f"/v1/cut/{shift}", body.encode())
    assert rig.logged(path=f"/v1/cut/{shift}")["service"] == "big"


def asked_again(rig: Rig) -> int:
    """Requests so far that the activator had to look into."""
    rows = csv.DictReader(RuntimeApi(rig.plane.files.stats_socket).ask("show stat again 1 -1").splitlines())
    return sum(int(row["req_tot"]) for row in rows)


def test_tails_follow_each_other_and_keep_enough() -> None:
    tails = model_tails(BUFFER_BYTES)
    assert (tails[0].least, tails[0].skipped) == (0, 0)
    assert BUFFER_BYTES - 16384 <= tails[-1].most < BUFFER_BYTES
    for one, following in pairwise(tails):
        assert following.least == one.most + 1
    for tail in tails[1:]:
        assert tail.least - tail.skipped >= 320
