"""What is in DVC's remote of the repository."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from support.repository import ROOT


def stored(name: str) -> Path:
    """A file of ``data/``, where DVC's remote in the repository keeps it."""
    files = ROOT / "dvcstore" / "files" / "md5"

    def of(md5: str) -> Path:
        return files / md5[:2] / md5[2:]

    folder = yaml.safe_load((ROOT / "data.dvc").read_text())["outs"][0]["md5"]
    return of(next(one["md5"] for one in json.loads(of(folder).read_text()) if one["relpath"] == name))
