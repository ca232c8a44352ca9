"""The functions of cog blocks in the docs, on a page of their own; ``make docs-output`` runs the pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import ROOT

pytest.importorskip("cogapp", reason="needs evenshard[docs]")
MARKERS = "--markers=<!--[[[cog ]]]--> <!--[[[end]]]-->"
PAGE = """\
    1.85 ms
    a\x20\x20\x20█▉
    12 tables

<!--[[[cog save("said.txt")]]]-->
<!--[[[end]]]-->

    grep -v nothing said.txt

<!--[[[cog show()]]]-->

```text
...
a ▏
9
tables
```

<!--[[[end]]]-->

    ls nowhere

<!--[[[cog show(fails=True)]]]-->
<!--[[[end]]]-->

    import json
    from pathlib import Path

<!--[[[cog check()]]]-->
<!--[[[end]]]-->

    print(json.dumps(Path("said.txt").read_text()))

<!--[[[cog check()]]]-->
<!--[[[end]]]-->

It takes 1.9 ms on an H100.

<!--[[[cog quotes("printf '1.85 ms of 2.13.0'")]]]-->
<!--[[[end]]]-->
"""


def run(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    words = ["-m", "cogapp", "-I", str(ROOT), "-p", "from docs.commands import *", MARKERS, *flags, str(page)]
    return subprocess.run([sys.executable, *words], capture_output=True, text=True)


def test_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert run(page, "--check").returncode == 5
    done = run(page, "-r")
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "```text\n...\na   █▉\n12 tables\n```" in text
    assert "nowhere'" in text and "No such file" in text
    assert run(page, "--check").returncode == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("1.9 ms", "2.1 ms", "no source says 2.1 any more"),
        ("a ▏", "b ▏", "the output has other words now than"),
        ("grep -v nothing", "grep nothing", "exit code 1: grep nothing said.txt"),
    ],
)
def test_a_page_that_is_out_of_date(old: str, new: str, said: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(old, new))
    done = run(page, "--check")
    assert done.returncode == 4 and said in done.stderr
