"""evenshard's search over every way to shard: types and places of all tables together, by cost networks and links."""
