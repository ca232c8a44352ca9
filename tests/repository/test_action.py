"""The GitHub Action: its steps run with bash, in a repository with two commits, against an API that is made up."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import documented
from support.documented import ROOT
from support.http_server import Silent, serving
from support.patience import PATIENCE_S

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
SMALL = """
- {{name: clicks, num_rows: 20000, embedding_dim: 64, pooling_factor: {}}}
- {{name: '@all|`x`', num_rows: 9000, embedding_dim: 32, pooling_factor: 1}}
"""
TABLES = "models/my tables.yaml"
# Modules that the action's programs import, and files that pip, venv or Python might read where they run.
HOSTILE_MODULES = ("shlex", "numpy", "venv", "pip", "ensurepip", "evenshard", "json", "sitecustomize", "usercustomize")
HOSTILE_FILES = {
    "setup.py": "import shlex\n",
    "setup.cfg": "[install]\nprefix = hostile\n",
    "pip.conf": "[global]\nprefix = hostile\n",
    "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'shlex'\nbackend-path = ['.']\n",
}
# A project that pip builds with nothing but itself.
BACKEND = """
import zipfile
FILES = {
    "evenshard.py": "HERE = 1",
    "evenshard-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: evenshard\\nVersion: 1",
    "evenshard-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any",
    "evenshard-1.dist-info/RECORD": "",
}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/evenshard-1-py3-none-any.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    return "evenshard-1-py3-none-any.whl"
"""


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

    handler: type[BaseHTTPRequestHandler] = Handler
    with serving(handler) as state.address:
        yield state


@dataclass
class Job:
    """A run of the action's steps."""

    checkout: Path
    temp: Path
    api: Api
    env: Mapping[str, str] = field(default_factory=dict)
    rc: int = 0
    shown: str = ""

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
            assert step["shell"] == "bash"
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


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, text=True, capture_output=True, check=True)
    return done.stdout.strip()


def job(tmp_path: Path, api: Api, before: str | None, after: str | None) -> Job:
    """A checkout of a branch that changes the table file of main."""
    checkout, temp = tmp_path / "checkout", tmp_path / "temp"
    (checkout / "models").mkdir(parents=True)
    temp.mkdir()
    (checkout / "README.md").write_text("mine")
    git(checkout, "init", "-q", "-b", "main")
    for content, branch in ((before, "main"), (after, "change")):
        if branch != "main":
            git(checkout, "switch", "-q", "-c", branch)
        if content is None:
            (checkout / TABLES).unlink(missing_ok=True)
        else:
            (checkout / TABLES).write_text(content)
        git(checkout, "add", "-A")
        git(checkout, "commit", "-q", "--allow-empty", "-m", branch)
    return Job(checkout, temp, api)


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
@pytest.mark.parametrize(
    ("before", "after", "said", "rc"),
    [
        (None, SMALL.format(2), "The table file is new: there is nothing to compare with.", 0),
        (SMALL.format(2), "- {name: a}\n", "**The tables cannot be placed any more.**", 1),
        ("- {name: a}\n", SMALL.format(2), "The tables of the base could not be placed, those of this change can:", 0),
    ],
)
def test_files_that_come_or_are_broken_are_told(
    tmp_path: Path, api: Api, before: str | None, after: str | None, said: str, rc: int
) -> None:
    run = job(tmp_path, api, before, after).run()
    assert run.rc == rc, run.shown
    assert said in run.comment and run.comment == run.summary and run.comment.startswith("<!-- evenshard placement of")
    if "- {name: a}\n" in (before, after):
        assert f"{TABLES}" in run.comment and "num_rows" in run.comment  # the message of `evenshard place`
    assert ("::error::" in run.shown) == bool(rc)


@pytest.mark.slow
def test_a_token_that_may_not_comment_and_a_run_without_comments_leave_the_summary(tmp_path: Path, api: Api) -> None:
    api.refuses = True
    run = job(tmp_path, api, None, None).run()
    assert run.rc == 1 and "::warning::No comment" in run.shown
    assert "There is no such file, neither before nor after." in run.summary and len(api.comments) == 100
    api.refuses = False
    assert len(run.run(comment="false").api.comments) == 100


@pytest.mark.slow
def test_evenshard_is_installed_from_the_checkout_of_the_action(tmp_path: Path, api: Api) -> None:
    """With a small project in its place: pip has no network here. No file of the pull request's checkout matters."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(HOSTILE_FILES["pyproject.toml"].replace("shlex", "backend"))
    (project / "backend.py").write_text(BACKEND)
    run = job(tmp_path, api, None, None)
    ran = with_hostile_files(run)
    step = next(one for one in ACTION["runs"]["steps"] if one.get("id") == "install")
    known = {"inputs.python": "", "inputs.pip-arguments": "--no-index", "github.action_path": str(project)}
    run._step(step, known)
    assert run.rc == 0, run.shown
    where = subprocess.run(
        [known["steps.install.outputs.python"], "-I", "-c", "import evenshard; print(evenshard.HERE)"],
        text=True,
        capture_output=True,
        cwd=tmp_path,
    )
    assert where.stdout == "1\n", where.stderr
    assert not ran.exists(), ran.read_text()


@pytest.mark.slow
def test_no_code_of_the_pull_request_is_run(tmp_path: Path, api: Api) -> None:
    run = job(tmp_path, api, SMALL.format(2), SMALL.format(60))
    ran = with_hostile_files(run)
    run.run()
    assert run.rc == 0, run.shown
    assert not ran.exists(), ran.read_text()
    assert "| fullest device, GB | " in run.comment


def with_hostile_files(run: Job) -> Path:
    """Add files to the checkout, and a PYTHONPATH to the job, that run code wherever Python looks into the checkout.

    Returns:
        A file that is written once any of that code runs.
    """
    ran = run.temp / "ran"
    for name in HOSTILE_MODULES:
        (run.checkout / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name} ')\n")
    for name, content in HOSTILE_FILES.items():
        (run.checkout / name).write_text(content)
    run.env = {"PYTHONPATH": f".:{run.checkout}"}
    return ran


def test_every_python_of_the_action_is_isolated() -> None:
    texts = [step["run"] for step in ACTION["runs"]["steps"]] + [(ROOT / "action/compare.sh").read_text()]
    calls = re.findall(r'(?:"\$PYTHON"|\bpython3?) (?!\])(\S+)', "\n".join(texts))
    assert calls == ["-I"] * 6


def test_its_shape_is_that_of_a_composite_action() -> None:
    assert {"name", "description", "inputs", "outputs", "runs"} == set(ACTION)
    assert ACTION["runs"]["using"] == "composite"
    steps = ACTION["runs"]["steps"]
    ids = [step["id"] for step in steps if "id" in step]
    assert len(ids) == len(set(ids)) and shutil.which("bash")
    for step in steps:
        assert {"name", "shell", "run"} <= set(step) <= {"name", "shell", "run", "id", "env", "if"}
        assert "${{" not in step["run"]  # what others wrote comes through the environment
        for text in (*step.get("env", {}).values(), *[step.get("if", "")]):
            for name in re.findall(r"inputs\.([\w-]+)", text):
                assert name in ACTION["inputs"]
            for name in re.findall(r"steps\.(\w+)\.outputs", text):
                assert name in ids[: steps.index(step)]
    for one in ACTION["inputs"].values():
        assert one["description"] and set(one) <= {"description", "required", "default"}
        assert isinstance(one.get("default", ""), str)  # an input is text
    assert all(set(one) == {"description", "value"} for one in ACTION["outputs"].values())


def test_the_workflow_to_copy_uses_inputs_that_there_are() -> None:
    workflow = yaml.safe_load(documented.snippet("docs/kubeflow.md", "OWNER/evenshard@main"))
    (work,) = workflow["jobs"].values()
    step = next(one for one in work["steps"] if one["uses"].startswith("OWNER/evenshard"))
    assert set(step["with"]) <= set(ACTION["inputs"])
    required = {name for name, one in ACTION["inputs"].items() if one.get("required")}
    assert required <= set(step["with"]) and workflow["permissions"]["pull-requests"] == "write"
    assert shlex.split(step["with"]["arguments"])
