"""The GitHub Action: its steps run with bash, in a repository with two commits, against an API that is made up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.http_server import Silent, serving
from support.patience import PATIENCE_S
from support.repository import ROOT, git

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
SMALL = """
- {{name: clicks, num_rows: 20000, embedding_dim: 64, pooling_factor: {}}}
- {{name: '@all|`x`', num_rows: 9000, embedding_dim: 32, pooling_factor: 1}}
"""
TABLES = "models/my tables.yaml"


@dataclass
class Api:
    """Comments of one pull request."""

    address: str = ""
    comments: list[dict[str, Any]] = field(default_factory=list)
    refuses: bool = False
    tokens: set[str] = field(default_factory=set)


@pytest.fixture
def api() -> Iterator[Api]:
    state = Api(comments=[{"id": number, "body": "looks good"} for number in range(100)])

    class Handler(Silent):
        def _answer(self, code: int, content: Any) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def _body(self) -> str:
            state.tokens.add(self.headers["Authorization"])
            return json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]  # type: ignore[no-any-return]

        def do_GET(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            assert url.path == "/repos/me/mine/issues/7/comments"
            query = urllib.parse.parse_qs(url.query)
            page, size = int(query["page"][0]), int(query["per_page"][0])
            self._answer(200, state.comments[(page - 1) * size : page * size])

        def do_POST(self) -> None:
            body = self._body()
            if state.refuses:
                return self._answer(403, {"message": "Resource not accessible by integration"})
            assert self.path == "/repos/me/mine/issues/7/comments"
            state.comments.append({"id": len(state.comments), "body": body})
            self._answer(201, {})

        def do_PATCH(self) -> None:
            number = int(self.path.removeprefix("/repos/me/mine/issues/comments/"))
            state.comments[number]["body"] = self._body()
            self._answer(200, {})

    with serving(Handler) as state.address:
        yield state


@dataclass
class Job:
    """A run of the action's steps."""

    checkout: Path
    temp: Path
    api: Api
    rc: int = 0
    shown: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, **inputs: str) -> Job:
        """Runs every step whose condition holds until one fails."""
        base = git(self.checkout, "rev-parse", "main")
        github = {
            "github.event.pull_request.base.sha": base,
            "github.event.pull_request.number": "7",
            "github.token": "secret-token",
            "github.action_path": str(ROOT),
        }
        given = {name: one.get("default", "") for name, one in ACTION["inputs"].items()}
        known = {f"inputs.{name}": filled(value, github) for name, value in given.items()} | github
        more = {"tables": TABLES, "arguments": "--devices 2 --hardware simulated:h100", "python": sys.executable}
        known |= {f"inputs.{name}": value for name, value in (more | inputs).items()}
        for step in ACTION["runs"]["steps"]:
            if not holds(step.get("if", ""), known):
                continue
            self._step(step, known)
            if self.rc:
                break
        return self

    def _step(self, step: Mapping[str, Any], known: dict[str, str]) -> None:
        output, summary = self.temp / "output", self.temp / "summary.md"
        output.write_text("")
        env = {
            **os.environ,
            **self.env,
            **{name: filled(value, known) for name, value in step.get("env", {}).items()},
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_API_URL": self.api.address,
            "GITHUB_REPOSITORY": "me/mine",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.checkout,
            env=env,
            text=True,
            capture_output=True,
            timeout=PATIENCE_S,
        )
        self.rc, self.shown = done.returncode, self.shown + done.stdout + done.stderr
        for line in output.read_text().splitlines():
            name, _, value = line.partition("=")
            known[f"steps.{step['id']}.outputs.{name}"] = value

    @property
    def summary(self) -> str:
        return (self.temp / "summary.md").read_text()

    @property
    def comment(self) -> str:
        (found,) = (one["body"] for one in self.api.comments if one["body"] != "looks good")
        return str(found)


def filled(text: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: known[found[1]], text)


def holds(condition: str, known: Mapping[str, str]) -> bool:
    for part in filter(None, condition.split(" && ")):
        name, sign, value = part.split(" ")
        if (known.get(name, "") == value.strip("'")) != (sign == "=="):
            return False
    return True


def job(tmp_path: Path, api: Api, before: str, after: str) -> Job:
    """A checkout of a branch that changes the table file of main."""
    checkout = tmp_path / "checkout"
    (checkout / "models").mkdir(parents=True)
    git(checkout, "init", "-q", "-b", "main")
    for content, branch in ((before, "main"), (after, "change")):
        if branch != "main":
            git(checkout, "switch", "-q", "-c", branch)
        (checkout / TABLES).write_text(content)
        git(checkout, "add", "-A")
        git(checkout, "commit", "-q", "-m", branch)
    return Job(checkout, tmp_path, api)


@pytest.mark.slow
def test_a_change_is_commented_and_the_comment_follows_it(tmp_path: Path, api: Api) -> None:
    run = job(tmp_path, api, SMALL.format(2), SMALL.format(60)).run(**{"max-move-gb": "0"})
    assert run.rc == 0, run.shown
    text = run.comment
    assert text.startswith(f"<!-- evenshard placement of {TABLES} -->\n### evenshard: `{TABLES}`\n")
    assert "MORE than before" in text and "| fullest device, GB | " in text and text == run.summary
    assert "| moves to other devices | | nothing; " in text
    assert api.tokens == {"Bearer secret-token"}
    (run.checkout / TABLES).unlink()
    again = run.run()
    assert again.rc == 0 and len(api.comments) == 101
    assert "The table file is removed." in again.comment and "MORE" not in again.comment


@pytest.mark.slow
def test_broken_files_are_told_and_a_token_that_may_not_comment_leaves_the_summary(tmp_path: Path, api: Api) -> None:
    run = job(tmp_path, api, SMALL.format(2), "- {name: a}\n").run()
    assert run.rc == 1 and "::error::" in run.shown and "**The tables cannot be placed any more.**" in run.comment
    assert "num_rows" in run.comment and run.comment == run.summary  # the message of `evenshard place`
    api.refuses = True
    del api.comments[100:]
    again = job(tmp_path / "again", api, SMALL.format(2), SMALL.format(60)).run()
    assert again.rc == 0 and "::warning::No comment" in again.shown and "MORE than before" in again.summary


@pytest.mark.slow
def test_no_code_of_the_pull_request_is_run(tmp_path: Path, api: Api) -> None:
    """Modules of its checkout are nowhere imported, even if PYTHONPATH names it."""
    run, ran = job(tmp_path, api, SMALL.format(2), SMALL.format(60)), tmp_path / "ran"
    for name in ("sitecustomize", "usercustomize", "evenshard", "json", "numpy", "yaml"):
        (run.checkout / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name} ')\n")
    run.env = {"PYTHONPATH": f".:{run.checkout}"}
    run.run()
    assert run.rc == 0, run.shown
    assert not ran.exists(), ran.read_text()
    assert "| fullest device, GB | " in run.comment


def test_every_python_of_the_action_is_isolated() -> None:
    texts = [step["run"] for step in ACTION["runs"]["steps"]] + [(ROOT / "action/compare.sh").read_text()]
    calls = re.findall(r'(?:"\$PYTHON"|\bpython3?) (?!\])(\S+)', "\n".join(texts))
    assert calls == ["-I"] * 6
