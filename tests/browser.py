"""Chromium for the tests of pages: how it is started, and what the tests ask of a page in it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BROWSER_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

# The contrast of every text with its background (WCAG 2.1): the three lowest, in ascending order.
CONTRAST = """() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const over = (top, under) => { const a = top[3] === undefined ? 1 : top[3];
    return [0, 1, 2].map(i => top[i] * a + under[i] * (1 - a)); };
  const light = c => { const [r, g, b] = c.map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { const chain = [];
    for (; e; e = e.parentElement) chain.unshift(parse(getComputedStyle(e).backgroundColor));
    return chain.reduce((under, c) => over(c, under), [255, 255, 255]); };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || e.closest('svg') || e.tagName === 'TITLE') continue;
    const back = behind(e);
    const [a, b] = [light(over(parse(getComputedStyle(e).color), back)), light(back)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    found.push([ratio, walk.currentNode.data.trim().slice(0, 40), e.className]);
  }
  return found.sort((p, q) => p[0] - q[0]).slice(0, 3);
}"""


@contextmanager
def started() -> Iterator[Any]:
    """Start Chromium. Without it or without playwright, the test is skipped."""
    if BROWSER is None:
        pytest.skip("no Chromium or Chrome on the path")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER, args=list(BROWSER_OPTIONS))
        yield chromium
        chromium.close()


def watch(page: Any, events: list[str], *, requests: bool = False) -> None:
    """Append every message, error, dialog and new window of a page to a list, and, if asked for, every request."""
    page.on("console", lambda message: events.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: events.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (events.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("popup", lambda popup: events.append(f"popup: {popup.url}"))
    if requests:
        page.on("request", lambda request: events.append(f"request: {request.url}"))


def unfold(page: Any) -> None:
    """Open everything that can be opened in place."""
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")


def becomes(read: Callable[[], Any], expected: Any) -> None:
    """Wait until a value is as expected. Playwright's own function is forbidden by the policy of the page."""
    end = time.monotonic() + 5
    while (found := read()) != expected:
        assert time.monotonic() < end, f"{found!r}, expected {expected!r}"
        time.sleep(0.02)
