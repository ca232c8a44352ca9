"""The site loads no scripts, styles or fonts from third parties."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from support.repository import ROOT

# Tags whose address a browser asks for by itself.
LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=[\"']?([^\"'> ]+)")
# What a link tag may name elsewhere.
NOT_LOADED = re.compile(r"rel=[\"']?(?:canonical|next|prev|alternate|search)\b")
PAGE = "# A page\n\n    code\n\n[a link](https://example.org) to elsewhere\n"


@pytest.mark.slow
def test_pages_load_everything_from_the_site_itself(tmp_path: Path) -> None:
    """A page with the site's own settings; its API pages, which take long to build, have the same head."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(PAGE)
    for folder in ("stylesheets", "javascripts"):
        shutil.copytree(ROOT / "docs" / folder, tmp_path / "docs" / folder)
    settings = (ROOT / "mkdocs.yml").read_text()
    settings = re.sub(r"^(hooks|nav|not_in_nav|exclude_docs):.*\n((?:  .*\n)*)", "", settings, flags=re.MULTILINE)
    settings = re.sub(r"^  - mkdocstrings:\n(?:    .*\n)*", "", settings, flags=re.MULTILINE)
    (tmp_path / "mkdocs.yml").write_text(settings)
    build(load_config(str(tmp_path / "mkdocs.yml")))
    page = (tmp_path / "work/site/index.html").read_text()
    links = [found for found in re.findall(r"<link\b[^>]*>", page) if not NOT_LOADED.search(found)]
    addresses = LOADED.findall(page)
    addresses += re.findall(r"href=[\"']?([^\"'> ]+)", "".join(links))
    assert any("iframe-worker" in address for address in addresses)
    for address in addresses:
        assert not re.match(r"(https?:)?//", address), address
        assert (tmp_path / "work/site" / address.partition("?")[0]).is_file(), address


def test_no_page_has_a_diagram_that_the_theme_would_fetch_a_script_for() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md"), ROOT / "CHANGELOG.md"]
    assert not [page for page in pages if "mermaid" in page.read_text(encoding="utf-8")]
