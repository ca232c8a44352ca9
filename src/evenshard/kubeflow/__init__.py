"""The loop on Kubeflow Pipelines: code that components/ and pipelines/ share, and clients that run a pipeline.

::

    cluster      settings of each stage's pods: CPUs, memory, GPUs, retries, timeouts and secrets
    component    conventions of components: image, addresses, names of inputs, outputs and parameters
    pod          execution of a stage inside a component's pod (pod_journal: its journal)
    run_outcome  the exit handler of a pipeline
    package      a compiled pipeline file
    local        runs on this machine, with tasks as processes or in containers
    remote       runs on a cluster (run_status: their tasks and pods)

``kfp`` is imported only inside the functions that need it.
"""
