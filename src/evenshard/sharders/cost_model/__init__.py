"""evenshard's own method: a cost model that is convex in a device's load, and a search that minimises it."""
