"""Pages of the site whose files stand elsewhere in the repository, so that links to them hold there and on the site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = (
    "benchmarks/*.md",
    "benchmarks/*.svg",
    "k8s/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/*.py",
    "examples/*.yaml",
    "examples/*.ipynb",
)
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages."""
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links between docs/ and the rest of the repository into links of the site.

    Of a file that the site does not have only the name stays. A link to nothing is left to mkdocs, which refuses it.
    """
    folder = Path(page.file.abs_src_path).parent

    def link(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / found["target"]))
        if not path.exists() or not path.is_relative_to(ROOT):
            return found[0]
        root = config.docs_dir if path.is_relative_to(config.docs_dir) else ROOT
        name = str(path.relative_to(root))
        if files.get_file_from_path(name) is None:
            return found["text"]
        return f"[{found['text']}]({'../' * page.file.src_uri.count('/')}{name}{found['anchor'] or ''})"

    return LINK.sub(link, markdown)
