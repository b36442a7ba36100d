"""A browser for the tests of the page, with what they share: links to views, and waits for conditions."""

import shutil
import time
from typing import Any
from urllib.parse import urlencode

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 360, "height": 740}
TIMEOUT = 300_000  # milliseconds: as long as other tests wait (waiting.py)


class Browser:
    """A browser that records what goes wrong in its pages."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.errors: list[str] = []

    def open(self, url: str, origin: str, size: dict[str, int] = WIDE, dark: bool = False) -> Any:
        """Open a page in a new context."""
        context = self.browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
        context.set_default_timeout(TIMEOUT)
        page = context.new_page()
        page.on("console", lambda entry: entry.type == "error" and self.errors.append(f"console: {entry.text}"))
        page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda sent: sent.url.startswith(origin) or self.errors.append(f"request: {sent.url}"))
        page.goto(url)
        return page

    def expect(self, status: int) -> None:
        """Remove the console messages of an expected status. The browser logs it whatever the page does."""
        self.forget(f"status of {status}")

    def forget(self, words: str) -> None:
        """Remove the messages that contain these words."""
        self.errors = [one for one in self.errors if words not in one]

    def close(self) -> list[str]:
        """Close all pages, and return their errors."""
        for context in self.browser.contexts:
            context.close()
        errors, self.errors = self.errors, []
        return errors


def link(server: str, view: str, **values: str) -> str:
    """Return the address of a view."""
    return f"{server}/#/{view}?{urlencode(values)}"


def fits(page: Any) -> bool:
    """Return True if the page itself does not scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def until(page: Any, condition: str) -> None:
    """Wait for a condition. Playwright's own wait would evaluate a string in the page, which its policy forbids."""
    deadline = time.monotonic() + TIMEOUT / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"timed out: {condition}"
        page.wait_for_timeout(40)


def idle(page: Any) -> None:
    """Wait until a view is idle."""
    until(page, "!/…$/.test(document.querySelector('main .status')?.textContent ?? '…')")


def wait_for_compiled(page: Any) -> None:
    """Wait for the Transformer of a program. On a very busy machine a program may time out: then run it again."""
    figures, wrong = page.locator(".compiled figure"), page.locator(".status.wrong")
    deadline = time.monotonic() + 3 * TIMEOUT / 1000
    while not figures.count():
        assert time.monotonic() < deadline, "the program was not compiled"
        if wrong.count() and "took more than" in wrong.inner_text():
            page.press("input[aria-label=Input]", "Enter")
        page.wait_for_timeout(100)
