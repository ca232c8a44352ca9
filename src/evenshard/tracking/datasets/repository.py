"""The DVC and git commands that the datasets need, each with one clear error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from evenshard.tracking.datasets.partition import DATA
from evenshard.utils.errors import BadConfig, EvenshardError
from evenshard.utils.extras import require_package
from evenshard.utils.messages import shown

POINTER = Path("data.dvc")


class DatasetFailed(EvenshardError):
    """DVC or git could not do what was asked."""


@dataclass(frozen=True)
class Repository:
    """The work tree whose data.dvc names the datasets.

    Attributes:
        root: its top, where data.dvc and .dvc/ are.
    """

    root: Path

    @staticmethod
    def here() -> Repository:
        """The one around the working directory.

        Raises:
            BadConfig: there is none.
        """
        for folder in (Path.cwd(), *Path.cwd().parents):
            if (folder / ".dvc").is_dir():
                return Repository(folder)
        raise BadConfig("this is not a DVC repository: there is no .dvc folder here or above. Run it in the checkout.")

    def dvc(self, *words: str) -> str:
        """Runs a DVC command; returns what it prints. Raises DatasetFailed."""
        require_package("dvc")
        return self._run([sys.executable, "-m", "dvc", *words], f"dvc {' '.join(words)}")

    def git(self, *words: str) -> str:
        """Runs a git command; returns what it prints. Raises DatasetFailed."""
        return self._run(["git", *words], f"git {' '.join(words[:2])}")

    def files(self) -> list[str]:
        """Paths below data/ that data.dvc names, whether they are here or not."""
        if not (self.root / POINTER).exists():
            return []
        listed = json.loads(self.dvc("list", ".", str(DATA), "--recursive", "--dvc-only", "--json"))
        return [one["path"] for one in listed]

    def default_remote(self) -> str:
        """Name of DVC's default remote; "" if there is none."""
        return self._config.get("core.remote", "")

    def remotes(self) -> list[str]:
        """Names, the default one first."""
        names = [key.split(".")[1] for key in self._config if key.endswith(".url")]
        default = self.default_remote()
        return sorted(dict.fromkeys(names), key=lambda name: name != default)

    def remote_url(self, name: str) -> str:
        """Where a remote is.

        Raises:
            BadConfig: there is none of that name.
        """
        url = self._config.get(f"remote.{name}.url", "")
        if not url:
            raise BadConfig(f"DVC has no remote {shown(name)}. It has: {', '.join(self.remotes()) or 'none'}.")
        return url

    def store_inside(self, name: str) -> Path | None:
        """The folder of a remote that lies in the work tree and travels with git; None for any other remote."""
        url = self.remote_url(name)
        if "://" in url:
            return None
        folder = (self.root / ".dvc" / url).resolve()  # DVC counts from its config file
        return folder if folder.is_relative_to(self.root.resolve()) else None

    @cached_property
    def _config(self) -> dict[str, str]:
        """DVC's settings by their dotted names; asked for once, as DVC takes a third of a second to start."""
        lines = self.dvc("config", "--list").splitlines()  # `dvc remote list` breaks long ones
        return {key: value for key, _, value in (line.partition("=") for line in lines)}

    def _run(self, command: Sequence[str], shown: str) -> str:
        environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            errors = [line for line in said if line.startswith(("ERROR", "fatal", "error"))] or said[-1:] or ["no word"]
            raise DatasetFailed(f"`{shown}` failed: {'; '.join(' '.join(line.split()) for line in errors)}")
        return done.stdout
