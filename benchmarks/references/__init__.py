"""Measurements published by other projects."""
