"""Components of Kubeflow Pipelines, one folder each, with thin bodies that call ``evenshard``.

This folder is installed as ``evenshard_components`` (pyproject.toml, ``package-dir``). The image executes the source
text of a component's body, so the body contains all its imports.
"""
