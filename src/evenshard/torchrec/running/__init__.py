"""Running jobs: the moves between two placements as a file, and resharding without a restart."""
