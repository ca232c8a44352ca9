"""evenshard's own sharder: a learned cost model, and a search that minimizes its prediction."""
