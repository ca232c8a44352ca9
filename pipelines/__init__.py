"""Pipelines ``train``, ``retrain``, ``place`` and ``watch`` for Kubeflow Pipelines, and the loop in dvc.yaml.

This folder is installed as ``evenshard_pipelines`` (pyproject.toml, ``package-dir``). Its modules import each other by
relative names, which type checkers follow.
"""
