"""The stages of the loop as components of Kubeflow Pipelines, one folder each: thin bodies that call ``evenshard``.

An installation calls this folder ``evenshard_components`` (pyproject.toml, ``package-dir``). A component's body is run
from its source text inside the image, so it imports what it needs itself.
"""
