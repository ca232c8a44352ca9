"""What can go wrong when a saved network is read? Every kind of damage becomes one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evenshard.errors import BadFile
from evenshard.messages import reason_of


@contextmanager
def reading_saved(folder: Path, what: str, remedy: str) -> Iterator[None]:
    """Wraps the reading of a folder.

    Args:
        what: it should hold, such as "network".
        remedy: what to do where it does not.

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
