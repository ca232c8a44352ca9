"""Studies: the papers' tables on our own ground, every sharder on the same held-out tasks."""
