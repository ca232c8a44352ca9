"""A TorchRec model: its tables, its optimizers, its dense part, and the placements that TorchRec trains correctly."""
