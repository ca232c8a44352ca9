"""Kineto traces of a training with FBGEMM modules: what its embedding tables took on each rank."""
