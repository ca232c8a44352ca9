"""Conversion between placements and TorchRec's sharding plans, as objects and as files."""
