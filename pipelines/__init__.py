"""The stages, wired: ``train``, the loop on Kubeflow Pipelines; ``place``; ``retrain``; and the loop in dvc.yaml.

The package is called ``evenshard_pipelines`` (``src/evenshard_pipelines`` is a link to this folder).
"""
