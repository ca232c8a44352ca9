"""evenshard's own method: a cost model that is convex in what a device holds, and a search that asks it."""
