"""The token of the caller: the file that the user names, or the one that Kubernetes gives a pod."""

from __future__ import annotations

import os
from pathlib import Path

from evenshard.utils.errors import BadFile

_VARIABLE = "KF_PIPELINES_SA_TOKEN_PATH"
IN_CLUSTER = "/var/run/secrets/kubeflow/pipelines/token"


def token_file_in_use(named: Path | None) -> Path | None:
    """The file to read a token from before each call; None where there is none.

    Raises:
        BadFile: if the named file cannot be read or is empty.
    """
    if named is None:
        found = Path(os.environ.get(_VARIABLE) or IN_CLUSTER)
        return found if found.is_file() else None
    try:
        content = named.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(named, f"no token can be read ({error})", "Name a file with a token alone.") from None
    if not content or len(content.split()) > 1:
        raise BadFile(named, "holds no token", "Write the token alone into it.")
    return named
