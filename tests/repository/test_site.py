"""The site loads no scripts, styles or fonts from third parties."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support.repository import ROOT

pytest.importorskip("mkdocs", reason="needs evenshard[docs]")
pytest.importorskip("material", reason="needs evenshard[docs]")

# Tags whose address a browser asks for by itself, and the attribute that has it.
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
# What a link tag may name elsewhere.
NOT_LOADED = {"canonical", "next", "prev", "alternate", "search"}
PAGE = "# A page\n\n    code\n\n[a link](https://example.org) to elsewhere\n"


class Loaded(HTMLParser):
    """The addresses that a page makes a browser ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(LOADED.get(tag, ""))
        if address and not (tag == "link" and given.get("rel") in NOT_LOADED):
            self.addresses.append(address)


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
    page = Loaded()
    page.feed((tmp_path / "work/site/index.html").read_text())
    assert any("iframe-worker" in address for address in page.addresses)
    for address in page.addresses:
        assert not re.match(r"(https?:)?//", address), address
        assert (tmp_path / "work/site" / address.partition("?")[0]).is_file(), address


def test_no_page_has_a_diagram_that_the_theme_would_fetch_a_script_for() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md"), ROOT / "CHANGELOG.md"]
    assert not [page for page in pages if "mermaid" in page.read_text(encoding="utf-8")]
