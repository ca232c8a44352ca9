"""Readers of table properties in files of other tools; each returns a ``ToolFile``."""
