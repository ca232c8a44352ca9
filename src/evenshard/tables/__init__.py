"""Embedding tables and their sources: files, traffic, public sets, a generator."""
