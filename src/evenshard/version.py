"""The version of evenshard."""

__version__ = "0.1.0"
