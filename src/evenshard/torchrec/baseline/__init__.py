"""TorchRec's own planner as a baseline, and the one module that asks which TorchRec this is."""
