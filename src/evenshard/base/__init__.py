"""Errors, messages, atomic files, readers of foreign files, settings, S3."""
