"""Pictures of the docs that show an answer: files that documented commands leave, or parts of pages that they write."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

WIDTH, SCALE = 945, 1.25
FLAGS = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update"


def take(picture: Path, file: Path, part: dict[str, str] | None) -> None:
    """Copies a picture, or takes one of a part of an HTML page with this machine's own Chromium.

    Args:
        part: the selectors of the first element in the picture (``top``) and of the first below it (``below``).

    Raises:
        LookupError: there is no Chromium, or no Playwright.
    """
    if part is None:
        shutil.copy(file, picture)
        return
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        raise LookupError(f"{picture.name} is not taken again: that needs Chromium and Playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS.split())
        opened = browser.new_page(viewport={"width": WIDTH, "height": 1000}, device_scale_factor=SCALE)
        opened.goto(file.resolve().as_uri())
        top = _top(opened, part["top"])
        clip = {"x": 0, "y": top, "width": WIDTH, "height": _top(opened, part["below"]) - top}
        opened.screenshot(path=picture, full_page=True, clip=clip)
        browser.close()


def _top(opened: Any, selector: str) -> float:
    """Where the element begins, with a margin above it."""
    box = opened.locator(selector).first.bounding_box()
    assert box is not None, f"the page shows no {selector}"
    return float(max(box["y"] - 18, 0))
