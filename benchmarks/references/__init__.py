"""Measurements of other people."""
