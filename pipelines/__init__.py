"""The stages, wired: ``train``, the loop on Kubeflow Pipelines; ``place``; ``retrain``; and the loop in dvc.yaml.

An installation calls this folder ``evenshard_pipelines`` (pyproject.toml, ``package-dir``). Its modules import each
other by relative names, which type checkers follow.
"""
