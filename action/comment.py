"""Writes a comment of a pull request, in place of an earlier one with the same first line.

python -I comment.py comment.md 17, with GITHUB_API_URL, GITHUB_REPOSITORY and GITHUB_TOKEN. Standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# GitHub takes 65,536.
MOST_CHARACTERS = 65_000
CUT = "\n\n(cut: the summary of the job has all of it)\n"
PAGE = 100


def main(path: str, number: str) -> int:
    """Writes the comment; a token that may not is a warning, since the job's summary has the text too."""
    text = Path(path).read_text(encoding="utf-8")
    first = text.partition("\n")[0]
    if len(text) > MOST_CHARACTERS:
        text = text[: MOST_CHARACTERS - len(CUT)] + CUT
    issue = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues/{int(number)}/comments"
    try:
        earlier = next((one for one in _comments(issue) if (one.get("body") or "").startswith(first)), None)
        if earlier is None:
            _asked("POST", issue, {"body": text})
        else:
            _asked("PATCH", f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues/comments/{earlier['id']}", {"body": text})
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403, 404):
            raise
        print(f"::warning::No comment: the token may not write it ({error.code}). Give pull-requests: write.")
    return 0


def _comments(issue: str) -> Iterator[dict[str, Any]]:
    """All comments, page after page."""
    page = 1
    while found := _asked("GET", f"{issue}?per_page={PAGE}&page={page}"):
        yield from found
        if len(found) < PAGE:
            return
        page += 1


def _asked(method: str, path: str, content: dict[str, Any] | None = None) -> Any:
    """The API's answer."""
    request = urllib.request.Request(
        os.environ.get("GITHUB_API_URL", "https://api.github.com") + path,
        data=None if content is None else json.dumps(content).encode(),
        method=method,
        headers={
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
