"""TorchRec's own planner as a baseline, and the only module that checks TorchRec's version."""
