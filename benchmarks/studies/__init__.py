"""Studies: every sharder on the same held-out tasks, like the tables of the papers."""
