"""The loop on Kubeflow Pipelines: parts of components/ and pipelines/, and runs of a pipeline.

::

    cluster      processors, memory, GPUs, retries, time and secrets of each stage, as settings and in Kubernetes' terms
    component    a stage's component: its image, addresses, inputs, outputs and parameters
    pod          a stage inside a component's pod (pod_journal, retry)
    run_outcome  the exit handler of a pipeline
    requests     the tasks of ``place``, ``drift`` and ``watch``
    package      a pipeline as a file
    local        a pipeline on this machine, its tasks as processes or in containers
    remote       a pipeline on a cluster (run_status: its tasks and the reasons of its pods)

``kfp`` is imported only inside the functions that need it.
"""
