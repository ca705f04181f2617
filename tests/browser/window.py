"""A browser window on one page: looking, clicking, waiting, and pictures that are kept for people
to look at.
"""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

ARTIFACTS = Path(__file__).parents[1] / "artifacts"
PICTURE_TRIES = 5
PATIENCE = 90.0
"""Seconds; no test is about speed."""
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-dev-shm-usage",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--force-color-profile=srgb",
    ),
)

_BOX = """const box = document.querySelector(arguments[0]).getBoundingClientRect();
return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height}"""

Found = TypeVar("Found")


def program(*names: str) -> str | None:
    """The first of these programs that is installed."""
    return next((path for name in names if (path := shutil.which(name))), None)


class Window:
    """One browser with a profile of its own; `visit` opens a page, `close` ends it."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.binary_location = program("chromium", "chromium-browser") or ""
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(program("chromedriver")))

    def visit(self, url: str, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        self.size(width, height)
        self.theme("dark" if dark else "light")
        self.driver.get(url)

    def size(self, width: int, height: int) -> None:
        """`width` in CSS pixels; below 500 it is a phone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def theme(self, scheme: str) -> None:
        """What the system prefers."""
        media = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What the element says, whether it can be seen or not."""
        return str(
            self.script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
        )

    def count(self, selector: str) -> int:
        return len(self.all(selector))

    def click(self, selector: str) -> None:
        """Clicks as soon as the element can be clicked: the page may be laying itself out."""
        self.until(lambda: self._clicked(selector), f"{selector} that can be clicked")

    def _clicked(self, selector: str) -> bool:
        self.script(
            "document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector
        )
        try:
            self.one(selector).click()
        except (
            ElementClickInterceptedException,
            ElementNotInteractableException,
            StaleElementReferenceException,
        ):
            return False
        return True

    def fill(self, selector: str, text: str) -> None:
        """Replaces what a field holds."""
        self.script(
            "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', {bubbles: true}))",
            selector,
            text,
        )

    def tab(self, name: str) -> None:
        self.click(f"#tab-{name}")

    def submit(self, panel: str) -> None:
        """Clicks until the form hears of it: where a page moves, a click meets what is there then."""
        button = f"#panel-{panel} button[type=submit]"
        form = "const form = document.querySelector(arguments[0]).closest('form');"
        self.script(
            form + "delete form.dataset.heard;"
            "form.addEventListener('submit', () => { form.dataset.heard = 'yes'; }, {once: true})",
            button,
        )
        heard = form + "return form.dataset.heard"
        self.until(
            lambda: self._clicked(button) and self.script(heard, button), f"{button} is heard"
        )

    def press(self, selector: str, key: str) -> None:
        """A key as the element gets it."""
        self.script(
            "document.querySelector(arguments[0]).dispatchEvent(new KeyboardEvent('keydown', "
            "{key: arguments[1], bubbles: true}))",
            selector,
            key,
        )

    def script(self, code: str, *given: Any) -> Any:
        return self.driver.execute_script(code, *given)

    def until(self, look: Callable[[], Found], what: str) -> Found:
        """Waits until `look` finds something; fails naming `what` it waited for."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(0.05)
        self.picture("waited-in-vain")
        raise AssertionError(
            f"waited {PATIENCE:g} s in vain: {what}; the page says {self.text('body')[:2000]!r}"
        )

    def live(self) -> None:
        """Waits until the page has drawn a picture."""
        self.until(lambda: self.text("#state-text") == "live", "the page is live")

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(self.script("return document.documentElement.scrollWidth - window.innerWidth"))

    def complaints(self) -> list[str]:
        """What the console has said since the last look, the policy's violations included."""
        log: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [f"{entry['level']}: {entry['message']}" for entry in log]

    def picture(self, name: str, *, whole: bool = False, of: str = "") -> Path:
        """Keeps a screenshot under the artefacts; of the whole page, of one element, or of what
        the window shows.
        """
        ARTIFACTS.mkdir(exist_ok=True)
        asked: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole or bool(of)}
        for _ in range(PICTURE_TRIES):  # an element may grow while it is taken
            box = self.script(_BOX, of) if of else None
            if box:
                asked["clip"] = {**box, "scale": 1}
            taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", asked)
            if not of or self.script(_BOX, of) == box:
                break
        path = ARTIFACTS / f"{name}.png"
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    def close(self) -> None:
        self.driver.quit()
