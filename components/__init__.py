"""The stages of the loop as components of Kubeflow Pipelines, one folder each: thin bodies that call ``evenshard``.

The package is called ``evenshard_components`` (``src/evenshard_components`` is a link to this folder). A component's
body is run from its source text inside the image, so it imports what it needs itself.
"""
