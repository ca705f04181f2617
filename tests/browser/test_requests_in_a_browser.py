"""Requests, charts, a large tree and the programs, as a browser draws them; the runtime is a fake one."""

from __future__ import annotations

import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lmprog import wire
from lmprog.runtime.programs.call_builder import ServedModel
from lmprog.server.page import STATIC
from tests.browser.conftest import Site, opened
from tests.browser.test_page_in_a_browser import HOSTILE, OPEN
from tests.server.fake_runtime import Fake

if TYPE_CHECKING:
    from tests.browser.window import Window

Patch = pytest.MonkeyPatch
PROGRAMS = [one["id"] for one in json.loads((STATIC / "programs.json").read_text("utf-8"))]
LEAST_ROW = 15.0  # pixels: a word fits in
NODES = 1400


@contextmanager
def asked(site: Site, prompt: str, key: str = "") -> Iterator[list[str]]:
    """A long answer under way; at the end the list has what the client was told."""
    body = {"prompt": prompt, "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
    headers = {"content-type": "application/json"} | (
        {"authorization": f"Bearer {key}"} if key else {}
    )
    request = urllib.request.Request(
        f"{site.url}/v1/completions", json.dumps(body).encode(), headers
    )
    told: list[str] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                told.append(reply.read().decode())
        except urllib.error.HTTPError as error:
            told.append(error.read().decode())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield told
    finally:
        thread.join(120)


def cancel(window: Window, *, is_read: bool = False) -> None:
    """The second click is meant. A row that is read stays until it is closed."""
    window.click(f"{OPEN} .cancel")
    assert window.text(f"{OPEN} .cancel") == "Really?"
    window.click(f"{OPEN} .cancel")
    if is_read:
        window.until(lambda: window.text(f"{OPEN} .phase") == "ended", "its end")
        assert not window.one(f"{OPEN} .cancel").is_displayed()
        assert not window.one("#requests-empty").is_displayed()
        window.click(f"{OPEN} .opener")
    window.until(lambda: window.count(OPEN) == 0, "nothing runs")
    assert window.one("#requests-empty").is_displayed()


def test_a_request_is_read_while_it_is_written_and_cancelled(window: Window) -> None:
    with opened(window, pace=0.05) as (site, _), asked(site, HOSTILE) as told:
        window.live()
        window.until(lambda: window.count(OPEN) == 1, "a row")
        window.click(f"{OPEN} .opener")
        written = f"{OPEN} .texts .t-generated"
        window.until(lambda: window.text(written), "a text")
        assert window.text(f"{OPEN} .texts .t-computed").endswith(HOSTILE), "as it was sent"
        length = len(window.text(written))
        window.until(lambda: len(window.text(written)) > length, "more text")
        assert window.one(f"{OPEN} .opener").get_attribute("aria-expanded") == "true"
        assert window.count("main img, main script") == 0
        window.picture("requests")
        cancel(window, is_read=True)
        window.until(lambda: window.text("#ended-rows .phase") == "cancelled", "how it ended")
        window.until(lambda: told, "the client's answer")
    assert "cancelled from outside" in told[0]
    assert window.driver.title != "broken"


def test_sessions_are_listed_while_they_pause(window: Window, monkeypatch: Patch) -> None:
    monkeypatch.setattr(ServedModel, "called_tool", lambda self, text: "run_tests")
    with opened(window) as (site, _):

        def post(path: str, **body: Any) -> None:
            headers = {"content-type": "application/json"}
            data = json.dumps(body).encode()
            urllib.request.urlopen(urllib.request.Request(site.url + path, data, headers)).close()

        for turn in range(1, 4):
            messages = [{"role": "user", "content": f"{HOSTILE} and on"}] * (2 * turn - 1)
            post("/v1/chat/completions", messages=messages, max_tokens=4)
        window.live()
        row = "#session-rows tr"
        window.until(lambda: window.count(row) == 1, "a session")
        assert "in run_tests" in window.text(f"{row} th")
        assert "in memory" in window.text(row)
        window.picture("sessions", of="#requests")
        post("/flush_cache")
        window.until(lambda: "evicted" in window.text(row), "it is evicted")
        assert window.count("main img, main script") == 0


def test_texts_that_are_hidden_are_not_asked_for(window: Window) -> None:
    with opened(window, pace=0.05, ui_show_text=False) as (site, _), asked(site, "secret words"):
        window.live()
        assert not window.one("#search-text").is_enabled()
        window.until(lambda: window.count(OPEN) == 1, "a row")
        window.click(f"{OPEN} .opener")
        window.until(lambda: "hidden here" in window.text(f"{OPEN} .branches"), "why not")
        assert "secret" not in window.text("body")
        cancel(window, is_read=True)


def test_a_key_has_no_button_for_what_others_run(window: Window) -> None:
    keys: dict[str, Any] = {"api_keys": ("mine", "other"), "admin_key": "root"}
    with opened(window, pace=0.05, **keys) as (site, _), asked(site, "x", "other"):
        window.fill("#key-input", "mine")
        window.click("#key button")
        window.live()
        window.until(lambda: window.count(OPEN) == 1, "a row")
        assert "another key" in window.text(f"{OPEN} .name")
        assert not window.one(f"{OPEN} .cancel").is_displayed()
        window.click("#key-forget")
        window.until(lambda: window.one("#key").is_displayed(), "the question")
        window.fill("#key-input", "root")
        window.click("#key button")
        window.live()
        window.until(lambda: "key-2" in window.text(f"{OPEN} .name"), "the key's name")
        cancel(window)
    window.complaints()  # the browser tells of the 401 before the key was given


def test_a_request_that_has_ended_is_opened_with_its_answer_and_what_it_cost(
    window: Window,
) -> None:
    with opened(window) as (_, _):
        window.live()
        window.fill("#chat-input", HOSTILE)
        window.submit("chat")
        window.until(lambda: window.count("#ended-rows li"), "its row")
        answer = window.text("#chat-log .result .text")
        window.click("#ended-rows .opener")
        shown = "#ended-rows .branches"
        window.until(lambda: window.text(f"{shown} .t-generated") == answer, "what was answered")
        told = window.text(shown)
        for words in ("in the queue", "until the first token", "tokens computed", "Ended by: "):
            assert words in told
        window.picture("ended", of="#ended")
        assert window.count("main img, main script") == 0


def test_while_a_chat_is_written_its_button_stops_it(window: Window) -> None:
    button = "#panel-chat button[type=submit]"
    with opened(window, pace=0.05) as (_, fake):
        window.live()
        window.fill("#panel-chat input[name=max_tokens]", "1500")
        window.fill("#chat-input", "what is it")  # 394 tokens
        window.submit("chat")
        window.until(lambda: window.text("#chat-log .t-generated"), "a text")
        assert window.text(button) == "Stop"
        assert window.one(button).is_displayed()
        window.submit("chat")
        window.until(lambda: window.text(button) == "Send", "the end")
        assert window.text("#chat-log .result .note") == "stopped"
        window.until(lambda: not fake.scheduler.running, "nothing runs")


def test_the_administrator_is_shown_which_key_makes_whom_wait(window: Window) -> None:
    keys: dict[str, Any] = {"api_keys": ("mine", "other"), "admin_key": "root"}
    with opened(window, pace=0.05, **keys) as (site, _), asked(site, "x", "other"):
        window.fill("#key-input", "root")
        window.click("#key button")
        window.live()
        row = "#key-rows li:nth-child(2)"
        window.until(lambda: "1 open" in window.text(row), "its call")
        assert window.text(f"{row} b") == "key-2"
        window.until(lambda: "of work, 100%" in window.text(row), "what it costs")
        assert "in the last" in window.text("#keys-note") or "since" in window.text("#keys-note")
        window.until(lambda: window.count(OPEN) == 1, "a row")
        cancel(window)
    window.complaints()  # the browser tells of the 401 before the key was given


def test_charts_have_axes_and_begin_with_the_past(window: Window) -> None:
    with opened(window) as (site, _):
        window.live()
        window.submit("chat")
        window.until(lambda: window.count("#chat-log .result details"), "an answer")
        assert site.gateway.meters.history.rows()
        window.driver.refresh()
        window.live()
        window.until(lambda: window.script(_DRAWN) > 0, "a line")
        marks = window.script(_MARKS)
        assert "now" in marks
        assert "−2 min" in marks
        assert "0" in marks
        window.click("[data-range='3600']")
        assert "−20 min" in window.script(_MARKS)
        assert "cached" in window.one("#tokens-chart").get_attribute("aria-label")
        legend = window.text("#tokens-legend")
        assert [word for word in ("cached", "computed", "generated", "forced") if word in legend]


_DRAWN = "return document.querySelector('#memory-chart .curve').getAttribute('d')?.length ?? 0"
_MARKS = (
    "return [...document.querySelectorAll('#tokens-chart .axes text')].map(one => one.textContent)"
)


def grow(fake: Fake, count: int) -> None:
    """A tree of that many nodes at least: stems, and leaves that share them."""
    rng, connection = random.Random(5), fake.connect("grower")
    sampling = wire.SamplingParams(max_tokens=1)
    words = ("the", "cat", "dog", "house", "sea", "ship", "moon", "tree", "song", "road")
    stems = [" ".join(rng.choices(words, k=6)) for _ in range(count // 50)]
    for number in range(1, count + 1):
        prompt = f"{stems[number % len(stems)]} {number} {rng.choice(words)}"
        connection.send(
            [
                wire.Open(number),
                wire.Append(number, (wire.TextPiece(prompt),)),
                wire.Generate(number, number, sampling),
            ]
        )
    left = count
    while left:
        left -= sum(isinstance(one, wire.CallDone) for one in connection.receive(10.0))
    connection.send([wire.Close(number) for number in range(1, count + 1)])
    connection.close()


def test_a_tree_of_1400_nodes_can_be_read_searched_opened_and_zoomed_into(window: Window) -> None:
    heights = (
        "return [...document.querySelectorAll('#plot .node > rect:first-child')].map("
        "one => one.height.baseVal.value)"
    )
    with opened(window) as (_, fake):
        grow(fake, NODES)
        window.live()
        # the page may have drawn it while it grew
        window.until(lambda: f"{NODES // 1000}," in window.text("#tree-note"), "all of the tree")
        window.until(lambda: window.count("#plot .node") > 10, "a tree")
        assert min(window.script(heights)) >= LEAST_ROW
        assert window.count("#plot .node.more") > 0
        words = window.script(
            "return [...document.querySelectorAll('#plot .node text')].filter("
            "one => one.textContent.length > 2).length"
        )
        assert words > 10, "blocks have words"
        window.picture("tree-large")
        window.fill("#search-text", "moon tree")
        window.click("#search button")
        window.until(lambda: window.count("#found li") > 0, "what was found")
        assert window.text("#found mark") == "moon tree"
        assert window.count("#plot .node.hit") > 0
        assert window.count("#plot .node.dim") > 0
        window.click("#found li button")
        window.until(lambda: window.text("#opened .text"), "its text")
        assert "nobody" in window.text("#opened")
        window.click("#opened .buttons button")
        window.until(lambda: window.count("#crumbs button") == 2, "the way back")
        window.until(lambda: window.count("#plot .node") > 0, "the part")
        window.click("#crumbs button")
        assert not window.one("#crumbs").is_displayed()
        window.fill("#search-text", "")
        assert window.count("#plot .node.dim") == 0


def test_a_block_says_who_uses_it_and_leads_there(window: Window) -> None:
    with opened(window, pace=0.05) as (site, _), asked(site, "a prompt that is used"):
        window.live()
        window.until(lambda: window.count("#plot .node.hot") > 0, "a block in use")
        window.script("document.querySelector('#plot').focus()")
        window.press("#plot", "Enter")
        window.until(lambda: "a prompt that is" in window.text("#opened .text"), "its text")
        assert "/v1/completions" in window.text("#opened .users")
        window.click("#opened .users button")
        assert window.one(f"{OPEN} .opener").get_attribute("aria-expanded") == "true"
        cancel(window, is_read=True)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "tools"])
def test_a_program_is_run_and_its_branches_are_drawn(window: Window, name: str) -> None:
    with opened(window):
        window.live()
        window.click(f"[data-program={name}]")
        assert "@lmprog.function" in window.text("#program-source")
        before = window.count("#program-drawn .box")
        window.click("#program-run")
        state = "return document.querySelector('#gallery').dataset.state"
        window.until(lambda: window.script(state) == "done", "the end")
        assert window.count("#program-drawn .box") == before
        assert "prompt tokens in all calls" in window.text("#gallery-note")
        assert window.text("#program-error") == ""
        assert window.count("#program-drawn .wait") == 0
        assert window.count("#program-drawn .t-generated, #program-drawn .chosen") > 0
        window.until(lambda: "/v1/programs" in window.text("#ended-rows .name"), "its row")


def test_branches_of_a_program_grow_while_it_runs_and_it_can_be_stopped(window: Window) -> None:
    with opened(window, pace=0.05):
        window.live()
        window.click("[data-program=tips]")
        window.click("#program-run")
        span = "#program-drawn .t-generated:not(.wait)"
        window.until(lambda: window.text(span), "the first text")
        length = len(window.text("#program-drawn"))
        window.until(lambda: len(window.text("#program-drawn")) != length, "more")
        assert window.text("#program-run") == "Stop"
        window.click("#program-run")
        window.until(lambda: window.text("#program-run") == "Run", "the end")
        window.until(lambda: window.count(OPEN) == 0, "nothing runs")


def test_on_a_phone_the_playground_comes_first(window: Window) -> None:
    order = "return [...document.querySelectorAll('#main > *')].map(one => one.id || one.className)"
    with opened(window, width=390):
        window.live()
        assert window.script(order)[:3] == ["playground", "figures", "served"], "charts are next"
        top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
        assert window.script(top, "#playground") < window.script(top, ".figures")
        assert window.script(top, "#playground") < 200
        window.size(1400, 1000)
        window.until(lambda: window.script(order)[0] == "figures", "the wide page")
        column = "return [...document.querySelectorAll('#right > *')].map(one => one.id)"
        assert window.script(column) == ["playground", "served"]
