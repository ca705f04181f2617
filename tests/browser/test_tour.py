"""A tour of the page before nano while programs run: what it says is right, and its pictures are
kept to be looked at.

Pictures in `docs/images` are the tour's: `page-light.png`, and `page-requests-light.png` of
`requests-light`, say.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx2
import pytest

import lmprog
from tests.server.conftest import Served, start, stop

if TYPE_CHECKING:
    from tests.browser.window import Window

WATCHED = float(os.environ.get("LMPROG_TOUR_SECONDS", "3"))
OPEN = "#open-rows > ol > li"
PHONE = 1400
"""Pixels: playground and programs."""
SHOWN = (
    "Review: I think the movie is excellent. I loved it.\nSentiment: positive\n\n"
    "Review: The room was dirty. I will not come back.\nSentiment: negative\n\n"
)
REVIEWS = (
    "The concert was boring.",
    "What a lovely hotel!",
    "The movie was terrible.",
    "I loved it.",
)
FACTS = (
    "Mia is 31 years old. Mia lives in Oslo. Ben is a baker. Mia has a dog. Ben likes "
    "the color green.\n"
)
QUESTIONS = ("How old is Mia?", "What is Ben's job?", "Where does Mia live?", "What does Ben like?")
TOPICS = ("saving money", "sleeping well", "writing letters")


@lmprog.function
async def classify(s: lmprog.Branch, review: str) -> lmprog.Selected:
    s.append(SHOWN)
    s.append(f"Review: {review}\nSentiment:")
    return await s.select(" positive", " negative")


@lmprog.function
async def ask(s: lmprog.Branch, questions: list[str], length: int) -> list[str]:
    s.append(FACTS)
    async with s.fork(len(questions)) as branches:
        branches += [f"Q: {question}\nA:" for question in questions]
        return await branches.map(
            lambda b: b.gen(max_tokens=length, temperature=1.0, ignore_eos=True)
        )


@lmprog.function
def tips(s: lmprog.Branch, topic: str) -> list[str]:
    s.append(f"Give a tip for {topic}.\nTip:")
    return s.gen(n=3, max_tokens=120, temperature=1.0, ignore_eos=True).values


@pytest.fixture(scope="module")
def nano() -> Iterator[Served]:
    # Answers that last long enough to be read while they come: without drafts, as long as may be.
    settings = json.dumps({"ui_show_text": True})
    options = json.dumps({"speculation": "off"})
    served = start("--model", "nano", "--options", options, "--settings", settings)
    yield served
    assert stop(served) == 0


@contextmanager
def programs(address: str) -> Iterator[None]:
    """Programs that run one after the other, three at a time, while the block does."""
    over = threading.Event()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        with lmprog.connect(address) as backend:
            while not over.is_set():
                try:
                    classify.using(backend=backend).run(rng.choice(REVIEWS))
                    ask.using(backend=backend).run(
                        rng.sample(QUESTIONS, 3), rng.choice((40, 60, 90))
                    )
                    tips.using(backend=backend).run(rng.choice(TOPICS))
                    over.wait(2 * rng.random())
                except Exception as error:  # noqa: BLE001 - the thread's border: told below
                    failures.append(error)
                    return

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []


def play(window: Window) -> None:
    """One of each, with the examples that the page brings."""
    window.tab("chat")
    window.submit("chat")
    window.until(lambda: window.count("#chat-log .result details"), "an answer")
    assert window.text("#chat-log .t-generated") == "positive"
    window.tab("fork")
    window.submit("fork")
    window.until(lambda: window.count("#panel-fork .result details") == 4, "four continuations")
    window.tab("select")
    window.submit("select")
    window.until(lambda: window.count("#panel-select .options li") == 2, "two options")
    assert window.text("#panel-select .chosen .choice").strip() == "negative"
    window.tab("json")
    window.submit("json")
    window.until(lambda: window.count("#panel-json .t-forced"), "a value")
    assert set(json.loads(window.text("#panel-json .result > .text"))) == {
        "name",
        "age",
        "town",
        "animal",
    }


@contextmanager
def a_long_answer(url: str) -> Iterator[None]:
    """A request by HTTP that runs while the block does, again and again."""
    over = threading.Event()
    body = {"prompt": FACTS, "max_tokens": 3900, "temperature": 1.0, "ignore_eos": True}

    def ask() -> None:
        with httpx2.Client(base_url=url, timeout=120.0) as client:
            while not over.is_set():
                assert client.post("/v1/completions", json=body).status_code == 200

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_while_programs_run(window: Window, nano: Served, theme: str) -> None:
    window.visit(nano.url, width=1280, height=1010, dark=theme == "dark")
    window.live()
    with programs(nano.runtime), a_long_answer(nano.url):
        play(window)
        time.sleep(WATCHED)  # for the lines of the charts to have something to show
        window.until(lambda: window.count(OPEN) >= 3, "some rows")
        window.until(lambda: window.count("#plot .node") >= 20, "a tree")
        window.script("scrollTo(0, 0)")
        window.picture(f"page-{theme}")
        window.until(lambda: read_a_text(window), "live text")
        window.picture(f"requests-{theme}", of="#requests")
        window.script("document.querySelector('#plot').focus()")
        window.press("#plot", "Enter")
        window.until(lambda: window.text("#opened .text"), "a block's text")
        window.fill("#search-text", "oslo")
        window.click("#search button")
        window.until(lambda: window.count("#found li") > 0, "what was found")
        window.picture(f"tree-{theme}", of=".column > .card")
    window.until(lambda: window.text("#busy") == "0", "everything is done")
    for name in ("chat", "json", "select", "fork"):
        window.tab(name)
        window.picture(f"{name}-{theme}")
    run_program(window, "tips")
    window.picture(f"programs-{theme}", of="#gallery")
    window.driver.get("about:blank")


def read_a_text(window: Window) -> bool:
    """Opens a request that may be read, one after the other until one is read before it ends.

    In one script: rows come and go while they are looked for.
    """
    return bool(
        window.script(
            """
            const rows = [...document.querySelectorAll(arguments[0])];
            if (rows.some((row) => row.querySelector(".t-generated")?.textContent)) return true;
            const opened = rows.filter((row) => row.querySelector("[aria-expanded=true]"));
            for (const row of opened) {
                if (row.querySelector(".phase").textContent !== "ended") return false;
                row.querySelector(".opener").click();
            }
            const asked = rows.filter((row) => row.textContent.includes("/v1/completions"));
            asked[0]?.querySelector("[aria-expanded=false]")?.click();
            return false;
            """,
            OPEN,
        )
    )


def run_program(window: Window, name: str) -> None:
    window.click(f"[data-program={name}]")
    window.click("#program-run")
    state = "return document.querySelector('#gallery').dataset.state"
    window.until(lambda: window.script(state) == "done", f"the end of {name}")
    assert window.text("#program-error") == ""


def test_programs_with_tools_run_on_the_page(window: Window, nano: Served) -> None:
    window.visit(nano.url, width=1280, height=1010)
    window.live()
    run_program(window, "tools")
    said = [one.text for one in window.all("#program-drawn .boxhead b")]
    assert said == ["user", "assistant", "tool", "assistant", "tool"]
    assert window.text("#program-drawn").count("look_up(") == 1
    window.picture("programs-tools", of="#gallery")
    window.driver.get("about:blank")


def test_the_page_on_a_phone(window: Window, nano: Served) -> None:
    window.visit(nano.url, width=390, height=844)
    window.live()
    play(window)
    run_program(window, "fork")
    window.until(lambda: window.count("#plot .node"), "a tree")
    assert window.overflow() <= 0
    for theme in ("light", "dark"):
        window.theme(theme)
        window.size(390, PHONE)
        window.script("scrollTo(0, 0)")
        window.picture(f"phone-{theme}")
        window.size(390, int(window.script("return document.documentElement.scrollHeight")))
        window.picture(f"phone-whole-{theme}")
    assert window.overflow() <= 0
    window.driver.get("about:blank")
