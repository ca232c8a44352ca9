"""Shared base: errors, messages, atomic writes, readers of untrusted files, settings, S3."""
