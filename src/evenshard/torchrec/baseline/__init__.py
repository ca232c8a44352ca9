"""TorchRec's own planner as a rival, and the one module that asks which TorchRec this is."""
