"""The pictures of docs/place.md: parts of the report that its first command writes. Needs Chromium and Playwright."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

COMMAND = "evenshard place mlperf_dlrm_v2 --devices 8 --hardware simulated:h100 --quiet --report"
# By picture: the selectors of its first element, and of the first element below it.
PARTS = {
    "answer.png": ("h1", "#times details"),
    "placement_report.png": ("h1", "#memory .chart ~ *, #memory + section"),
}
WIDTH, SCALE = 945, 1.25
FLAGS = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update"


def top(page: Page, selector: str) -> float:
    """Return the top of the first such element, with a margin."""
    box = page.locator(selector).first.bounding_box()
    assert box is not None, f"the report has no {selector}"
    return max(box["y"] - 18, 0)


def main() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report = Path(folder) / "report.html"
        subprocess.run([sys.executable, "-m", *COMMAND.split(), str(report)], check=True)
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS.split())
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, device_scale_factor=SCALE)
        page.goto(report.as_uri())
        for name, (first, below) in PARTS.items():
            begin = top(page, first)
            clip = {"x": 0, "y": begin, "width": WIDTH, "height": top(page, below) - begin}
            page.screenshot(path=Path(__file__).parent / "images" / name, full_page=True, clip=clip)
        browser.close()


if __name__ == "__main__":
    main()
