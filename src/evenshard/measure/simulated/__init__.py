"""Device models: what a GPU would take, from the constants of its profile."""
