"""Single measurements: speed, memory, accuracy of the bundled models, loops of several seeds."""
