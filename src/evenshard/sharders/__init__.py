"""Task in, placement out: one module per way to decide."""
