"""Device models: the times of a GPU, computed from the constants of its profile."""
