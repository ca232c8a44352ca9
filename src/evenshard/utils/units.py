"""The units of the project: bytes inside, GB = 1024**3 bytes in configuration, milliseconds everywhere."""

BYTES_PER_GB = 1024**3


def gb_to_bytes(gigabytes: float) -> int:
    """Bytes in ``gigabytes`` GB (1 GB = 1024**3 bytes), rounded to a whole byte."""
    return round(gigabytes * BYTES_PER_GB)


def bytes_to_gb(num_bytes: float) -> float:
    """GB (1024**3 bytes) in ``num_bytes``."""
    return num_bytes / BYTES_PER_GB


def seconds_to_ms(seconds: float) -> float:
    """Milliseconds in ``seconds``."""
    return seconds * 1e3
