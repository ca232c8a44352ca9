"""evenshard's search over every sharding type and place of all tables together, by cost networks and links."""
