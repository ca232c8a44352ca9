"""What does an s3:// address name? A bucket and a key in it."""

from __future__ import annotations

from dataclasses import dataclass

from evenshard.errors import BadConfig

SCHEME = "s3://"


@dataclass(frozen=True)
class Address:
    """A file or a folder in a bucket.

    Attributes:
        bucket: its name.
        key: of the file, or of the folder without a slash at the end; never empty.
    """

    bucket: str
    key: str

    @staticmethod
    def of(text: str) -> Address:
        """Reads ``s3://bucket/key``.

        Raises:
            BadConfig: it is nothing of the kind.
        """
        bucket, _, key = text.removeprefix(SCHEME).partition("/")
        key = key.rstrip("/")
        parts = key.split("/")
        if not text.startswith(SCHEME) or not bucket or not key or any(part in ("", ".", "..") for part in parts):
            raise BadConfig(f"{text!r} is no address on S3. Write s3://bucket/folder/name.")
        return Address(bucket, key)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    def below(self, path: str) -> Address:
        """An address inside this folder."""
        return Address(self.bucket, f"{self.key}/{path}")

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"
