"""A TorchRec model: its tables, its optimizers, its dense rest, and what TorchRec trains right of it."""
