"""The loop on Kubeflow Pipelines: what components/ and pipelines/ are built from, and how a pipeline runs.

::

    cluster, pod_spec   processors, memory, GPUs, retries, time and secrets of each stage, as settings and as Kubernetes
                        has them
    component           a stage's component: its image, addresses, inputs, outputs and parameters
    pod                 what a component does around its stage: files and metrics (pod_measurement: with torchrun on all
                        GPUs; retry: what is tried again in the same pod)
    requests            the tasks of ``place``, ``drift`` and ``watch``
    package             a pipeline as a file
    local               a pipeline on this machine, its tasks as processes or in containers
    remote              a pipeline on a cluster (api_errors; run_status, pods: the status of a run and its reasons)

``kfp`` is imported only inside the functions that need it.
"""
