"""Jobs that run already: which placement they have, what a new one moves, and checkpoints on it."""
