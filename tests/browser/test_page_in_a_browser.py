"""The page as people meet it. The runtime is a fake one, so that every text is possible and any
pace.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import opened

if TYPE_CHECKING:
    from tests.browser.window import Window

HOSTILE = (
    "<img src=x "
    'onerror="document.title=\'broken\'"><script>document.title="broken"</script> & "quotes"'
)
OPEN = "#open-rows > ol > li"
TABS = ("chat", "json", "select", "fork")
PHASES = ("decode", "prefill", "waiting")


def test_an_empty_runtime_says_what_to_do(window: Window) -> None:
    with opened(window):
        window.live()
        assert window.driver.title == "lmprog · fake"
        assert "2,000 tokens of context" in window.text("#model")
        assert window.one("#tree-empty").is_displayed()
        assert "playground" in window.text("#tree-empty")
        assert window.one("#requests-empty").is_displayed()
        assert not window.one("#ended").is_displayed()
        assert window.text("#hits") == "–"
        assert window.count("#programs button") == 6


def test_a_chat_is_answered_and_appears_in_the_tree(window: Window) -> None:
    with opened(window):
        window.live()
        window.fill("#chat-input", "hello there")
        window.submit("chat")
        window.until(
            lambda: "generated" in window.text("#chat-log .result .note"), "the answer's work"
        )
        assert "hello there" in window.text("#chat-log .turn.user")
        window.until(lambda: window.count("#plot .node") > 0, "a tree")
        assert not window.one("#tree-empty").is_displayed()
        nodes = window.count("#plot .node")
        window.fill("#chat-input", "and more")
        window.submit("chat")
        window.until(lambda: window.count("#chat-log .result details") == 2, "the second answer")
        window.until(lambda: window.count("#plot .node") > nodes, "a larger tree")
        assert "hello there" in window.text("#chat-log .result:last-child .t-cached"), (
            "the first turn was cached"
        )


def test_what_runs_is_shown_while_it_runs_and_can_be_stopped(window: Window) -> None:
    with opened(window, pace=0.05) as (_, fake):
        window.live()
        window.tab("fork")
        window.fill("#panel-fork input[name=max_tokens]", "1500")
        window.submit("fork")
        window.until(lambda: window.count(OPEN) == 1, "a row")
        # a row is there from when the request came: until its calls are seen, it says "queued"
        window.until(lambda: window.text(f"{OPEN} .phase") in PHASES, "how far it is")
        assert "/ui/play" in window.text(f"{OPEN} .name")
        forked = "5 branches"  # the prompt's and four forks
        window.until(lambda: forked in window.text(f"{OPEN} .name"), forked)
        window.until(lambda: window.count("#plot .ghost") == 4, "what is being written")
        window.until(lambda: window.count("#plot .hot") > 0, "what is in use")
        window.until(lambda: window.text("#busy") == "4", "the figure")
        before = window.script(
            "return document.querySelector('#plot .ghost rect').width.baseVal.value"
        )
        begin = window.text(f"{OPEN} .counts")
        window.until(lambda: window.text(f"{OPEN} .counts") != begin, "the counts move")
        assert before > 0
        window.picture("running")
        assert window.text("#panel-fork button[type=submit]") == "Stop"
        window.submit("fork")
        window.until(lambda: window.count(OPEN) == 0, "nothing runs")
        window.until(lambda: window.text("#ended-rows .phase") == "left", "how it ended")
        assert window.text("#panel-fork button[type=submit]") == "Fork"
        assert not fake.scheduler.running


def test_forks_stand_side_by_side_and_share_their_prompt(window: Window) -> None:
    with opened(window):
        window.live()
        window.tab("fork")
        window.fill("#panel-fork input[name=forks]", "3")
        window.submit("fork")
        window.until(lambda: window.count("#panel-fork .result details") == 3, "three results")
        summaries = sorted(
            str(element.get_property("textContent"))
            for element in window.all("#panel-fork summary")
        )
        assert [" 0 of " in text for text in summaries] == [True, False, False]


def test_choices_have_bars_and_the_best_is_marked(window: Window) -> None:
    with opened(window):
        window.live()
        window.tab("select")
        window.fill("#select-choices", "one\ntwo\nthree")
        window.submit("select")
        window.until(lambda: window.count("#panel-select .options li") == 3, "three options")
        widths = window.script(
            "return [...document.querySelectorAll('.options .fill')].map(e => "
            "parseFloat(e.style.width))"
        )
        assert sum(widths) == pytest.approx(100, abs=0.1)
        chosen = window.script(
            "return [...document.querySelectorAll('.options li')].map(e => e.className === "
            "'chosen')"
        )
        assert chosen.index(True) == widths.index(max(widths))


def test_json_keeps_its_schema_and_shows_what_was_forced(window: Window) -> None:
    with opened(window):
        window.live()
        window.tab("json")
        schema = {
            "type": "object",
            "properties": {"animal": {"enum": ["dog", "cat"]}},
            "required": ["animal"],
            "additionalProperties": False,
        }
        window.fill("#json-schema", json.dumps(schema))
        window.submit("json")
        window.until(lambda: window.count("#panel-json .t-forced"), "forced text")
        assert json.loads(window.text("#panel-json .result > .text"))["animal"] in ("dog", "cat")
        assert window.text("#panel-json .t-forced").startswith('{"animal": "')
        window.fill("#json-schema", "{nonsense")
        window.submit("json")
        assert "The schema is no JSON" in window.text("#panel-json .error")
        window.fill("#json-schema", '{"type": "nonsense"}')
        window.submit("json")
        window.until(
            lambda: "nonsense" in window.text("#panel-json .error"), "the runtime's own words"
        )


def test_hostile_text_stays_text(window: Window) -> None:
    with opened(window):
        window.live()
        window.fill("#chat-input", HOSTILE)
        window.submit("chat")
        window.until(lambda: window.count("#chat-log .result details"), "an answer")
        window.tab("select")
        window.fill("#select-prompt", HOSTILE)
        window.fill("#select-choices", HOSTILE)
        window.submit("select")
        window.until(lambda: window.count("#panel-select .options li"), "an option")
        window.until(lambda: window.count("#plot .node") > 0, "a tree")
        window.script("document.querySelector('#plot').focus()")
        window.until(lambda: " at 0–" in window.text("#details"), "details with text")
        assert window.count("main img, main script") == 0
        assert window.driver.title == "lmprog · fake"
        assert HOSTILE in window.text("#chat-log .turn.user")


def test_the_tree_can_be_walked_by_keyboard(window: Window) -> None:
    with opened(window):
        window.live()
        window.tab("fork")
        window.submit("fork")
        window.until(lambda: window.count("#plot .node") >= 3, "a tree with branches")
        press = (
            "document.querySelector('#plot').dispatchEvent(new KeyboardEvent('keydown', "
            "{key: arguments[0]}))"
        )
        window.script("document.querySelector('#plot').focus()")
        first = window.text("#details")
        assert "at 0–" in first
        window.script(press, "ArrowRight")
        assert window.text("#details") != first
        assert window.count("#plot .focused") == 1
        active = window.script(
            "return document.querySelector('#plot').getAttribute('aria-activedescendant')"
        )
        assert (
            window.script(
                "return document.getElementById(arguments[0]).getAttribute('aria-level')", active
            )
            == "2"
        )
        window.script(press, "ArrowLeft")
        assert window.text("#details").split(" · ")[0] == first.split(" · ")[0]


def test_light_and_dark_follow_the_system_until_somebody_chooses(window: Window) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    with opened(window):
        light = window.script(background)
        window.theme("dark")
        dark = window.until(
            lambda: window.script(background) != light and window.script(background), "dark"
        )
        window.click("#theme")
        assert window.script(background) == light
        window.driver.refresh()
        window.live()
        assert window.script(background) == light, "the choice is kept"
        window.click("#theme")
        assert window.script(background) == dark
        window.script("localStorage.clear()")


@pytest.mark.parametrize("width", [320, 390, 768, 1100, 1400])
def test_nothing_is_wider_than_the_window(window: Window, width: int) -> None:
    with opened(window, width=width):
        window.live()
        for name in TABS:
            window.tab(name)
            window.submit(name)
            window.until(
                functools.partial(window.count, f"#panel-{name} .result .note:not(:empty)"),
                "a result",
            )
            assert window.overflow() <= 0, name
        wide = window.script(
            "return [...document.querySelectorAll('main *')].filter("
            "e => e.getBoundingClientRect().right > innerWidth + 1 && "
            "!e.closest('.log')).map(e => e.id || e.className)"
        )
        assert wide == []


def test_the_key_is_asked_for_sent_as_a_header_and_forgotten_on_request(window: Window) -> None:
    with opened(window, api_keys=("the-key",)):
        window.until(lambda: window.one("#key").is_displayed(), "the question for the key")
        assert not window.one("#main").is_displayed()
        window.fill("#key-input", "another-key")
        window.click("#key button")
        window.until(lambda: "does not know this key" in window.text("#key-error"), "the refusal")
        window.fill("#key-input", "the-key")
        window.click("#key button")
        window.live()
        window.submit("chat")
        window.until(lambda: window.count("#chat-log .result details"), "an answer")
        asked = window.script(
            "return performance.getEntriesByType('resource').map(entry => entry.name)"
        )
        assert not [url for url in [*asked, window.driver.current_url] if "the-key" in url]
        window.driver.refresh()
        window.live()
        window.click("#key-forget")
        window.until(lambda: window.one("#key").is_displayed(), "the question again")
        said = [
            one for one in window.complaints() if "401" not in one
        ]  # the browser tells of refusals itself
        assert said == []


def test_a_runtime_that_goes_and_comes_back_is_told_where_it_is_seen(window: Window) -> None:
    with opened(window) as (served, fake):
        window.live()
        served.replace(None)
        window.until(lambda: window.one("#away").is_displayed(), "the message")
        assert "again" in window.text("#away")
        served.replace(fake.connect("again"))
        window.live()
        assert not window.one("#away").is_displayed()


def test_a_page_in_the_background_asks_for_nothing(window: Window) -> None:
    with opened(window) as (served, _):
        window.live()
        hide = (
            "Object.defineProperty(document, 'hidden', {configurable: true, value: arguments[0]});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        window.script(hide, True)
        window.until(lambda: not served.is_watched(), "nobody watches")
        window.script(hide, False)
        window.until(served.is_watched, "somebody watches")
