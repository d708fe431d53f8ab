"""The chat page in a real browser, against a gateway with a replica."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_gateway.dataplane.settings import ServiceSettings
from tests.inference_gateway.rig import ALICE, CLIENT_KEY, Replica, Rig, gateway
from tests.slurm_plugin.web.browsing import a_browser, axe, needs_chromium

pytestmark = needs_chromium
MARKUP = "<img src=x onerror=document.title='run'>"


@pytest.fixture
def rig(directory: Path, servers: list[Replica]) -> Iterator[Rig]:
    with gateway(directory, ServiceSettings("chat"), keys=(ALICE,), page="chat") as rig:
        rig.add("chat", servers[0].endpoint)
        yield rig


def said(page: Any, role: str, count: int) -> list[str]:
    """What stands there of a role, when so much has been said and nothing is under way."""
    page.wait_for_function(
        "([role, count]) => document.querySelectorAll(role).length === count", arg=[f".{role}", count]
    )
    page.wait_for_selector("#stop[disabled]")
    texts: list[str] = page.locator(f".said.{role}").all_inner_texts()
    return texts


def test_somebody_tries_a_model(rig: Rig) -> None:
    with a_browser() as browser:
        page = browser.new_page(viewport={"width": 380, "height": 800})
        faults: list[str] = []
        hosts: set[str] = set()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        page.goto(f"http://127.0.0.1:{rig.port}/chat", wait_until="networkidle")
        assert said(page, "error", 0) == [], "nobody has done anything wrong yet"

        page.fill("#key", "nobodys-key")
        page.press("#key", "Tab")
        assert "known API key" in said(page, "error", 1)[0]
        page.click("#clear")

        page.fill("#key", CLIENT_KEY)
        page.press("#key", "Tab")
        page.wait_for_selector("#model option", state="attached")
        page.fill("#text", MARKUP)
        page.press("#text", "Enter")
        assert said(page, "user", 1) == [MARKUP]
        assert said(page, "assistant", 1)[0].startswith("the quick brown fox")
        page.fill("#text", "and then?")
        page.click("text=Send")
        assert said(page, "assistant", 2)[1].startswith("the quick brown fox")

        assert page.title() == "Try a model", "what was typed was not run"
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        serious = [
            one for one in axe.Axe().run(page).response["violations"] if one["impact"] in {"serious", "critical"}
        ]
        assert (serious, faults, hosts) == ([], [], {f"127.0.0.1:{rig.port}"})
        page.click("#clear")
        assert page.locator(".said").count() == 0


def test_what_was_not_answered_is_no_part_of_the_conversation(rig: Rig) -> None:
    answers = [
        (503, '{"error": {"message": "no room"}}'),
        (200, 'data: {"error": {"message": "out of memory"}}\n\n'),
        (422, '{"error": "too long", "error_type": "validation"}'),
        (200, 'data: {"error": "generation failed"}\n\n'),
        (500, '{"error": {"code": 7}}'),
        (502, "<html>"),
        (200, "data: [DONE]\n\n"),
        (200, 'data:{"choices": [{"delta": {"content": "yes"}}]}\r\n\r\ndata: [DONE]\r\n\r\n'),
        (200, 'data: {"choices": [{"delta": {"content": "no"}, "finish_reason": "stop"}]}\n\n'),
    ]
    asked: list[list[tuple[str, str]]] = []

    def answer(route: Any) -> None:
        asked.append([(one["role"], one["content"]) for one in route.request.post_data_json["messages"]])
        status, body = answers[len(asked) - 1]
        route.fulfill(status=status, body=body)

    with a_browser() as browser:
        page = browser.new_page()
        page.route("**/v1/chat/completions", answer)
        page.goto(f"http://127.0.0.1:{rig.port}/chat", wait_until="networkidle")
        for number in range(len(answers)):
            page.fill("#text", f"question {number}")
            page.press("#text", "Enter")
            said(page, "user", number + 1)
            assert page.input_value("#text") == (f"question {number}" if number < 7 else ""), "it can be sent again"
        told = ["no room", "out of memory", "too long", "generation failed", '500 {"error": {"code": 7}}', "502 <html>"]
        assert said(page, "error", 7) == [*told, "the model answered nothing"]
        assert said(page, "assistant", 2) == ["yes", "no"]
    alone = [[("user", f"question {number}")] for number in range(8)]
    assert asked == [*alone, [*alone[7], ("assistant", "yes"), ("user", "question 8")]]


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ('"finish_reason": null}]}\n\n', "the answer broke off"),
        ('"finish_reason": "length"}]}\n\ndata: [DONE]\n\n', "the answer is cut: it has reached its greatest length"),
    ],
)
def test_an_answer_that_is_cut_does_not_look_whole(rig: Rig, last: str, why: str) -> None:
    with a_browser() as browser:
        page = browser.new_page()
        body = 'data: {"choices": [{"delta": {"content": "half"}, ' + last
        page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, body=body))
        page.goto(f"http://127.0.0.1:{rig.port}/chat", wait_until="networkidle")
        page.fill("#text", "question")
        page.press("#text", "Enter")
        assert said(page, "error", 1) == [why]
        assert said(page, "assistant", 1) == ["half"]


@pytest.mark.parametrize("composing", [{"isComposing": True}, {"keyCode": 229}])
def test_enter_that_ends_a_composition_does_not_send(rig: Rig, composing: dict[str, object]) -> None:
    with a_browser() as browser:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{rig.port}/chat", wait_until="networkidle")
        page.fill("#text", "にほ")
        event = {"key": "Enter", "bubbles": True, "cancelable": True, **composing}
        page.dispatch_event("#text", "keydown", event)
        assert (page.input_value("#text"), said(page, "user", 0)) == ("にほ", [])
        page.press("#text", "Enter")
        assert said(page, "user", 1) == ["にほ"]


def test_a_gateway_that_is_not_reached_is_told(rig: Rig) -> None:
    with a_browser() as browser:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{rig.port}/chat", wait_until="networkidle")
        page.route("**/v1/models", lambda route: route.abort())
        page.fill("#key", CLIENT_KEY)
        page.press("#key", "Tab")
        assert "fetch" in said(page, "error", 1)[0]
