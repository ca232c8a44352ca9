"""TorchRec's own planner as a baseline. Only this package checks TorchRec's version."""
