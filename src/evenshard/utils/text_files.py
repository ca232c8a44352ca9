"""A reader of the user's text files: UTF-8, up to a maximum size."""

from __future__ import annotations

from pathlib import Path

from evenshard.utils.limits import MAX_TEXT_BYTES


def read_text(path: Path) -> str:
    """The text of a file, line ends as they are.

    Raises:
        OSError: as ``open`` does.
        ValueError: if it is larger than ``MAX_TEXT_BYTES`` or is not UTF-8; one line.
    """
    with path.open("rb") as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise ValueError(f"it has more than {MAX_TEXT_BYTES / 2**20:,.0f} MB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start + 1:,})") from None
