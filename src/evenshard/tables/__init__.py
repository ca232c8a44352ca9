"""Embedding tables and their sources: table files, recorded traffic, public sets and a generator."""
