"""Single measurements: speed, memory, loops of several seeds."""
