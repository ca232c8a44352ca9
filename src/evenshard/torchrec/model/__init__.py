"""A TorchRec model: its tables, its optimizers, its dense rest, and placements that TorchRec trains correctly."""
