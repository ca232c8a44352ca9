"""Reading of folders that a training saved: whatever is wrong with one is a single line that names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evenshard.utils.errors import BadFile
from evenshard.utils.messages import reason_of


@contextmanager
def reading_saved(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """Wraps the reading of a folder.

    Args:
        what: content of the folder, such as "network".
        remedy: advice if it is missing.

    Raises:
        BadFile: a file of it is missing, or anything else went wrong.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise BadFile(folder, f"{Path(error.filename).name} is missing", remedy) from None
    except BadFile:
        raise
    except Exception as error:  # torch.load raises half a dozen kinds on a torn file
        raise BadFile(folder, f"not readable as a saved {what} ({reason_of(error)})", remedy) from None
