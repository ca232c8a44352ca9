"""Placements as TorchRec's sharding plans, and plans as placements, as objects and as files."""
