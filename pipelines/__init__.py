"""How the stages are wired: ``train``, the loop on Kubeflow Pipelines; ``place``; and the loop in dvc.yaml.

The package is called ``evenshard_pipelines`` (``src/evenshard_pipelines`` is a link to this folder).
"""
