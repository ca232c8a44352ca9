"""The best placements known of small tasks, by long searches over a simulated device's own times."""
