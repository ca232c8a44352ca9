"""The training loop on Kubeflow Pipelines: code shared by components/ and pipelines/, and clients to run pipelines.

::

    cluster      settings of each stage's pods: CPUs, memory, GPUs, retries, timeouts and secrets
    component    conventions of components: image, addresses, names of inputs, outputs and parameters
    pod          execution of a stage inside a component's pod (pod_journal: journal of its measurements)
    run_outcome  the exit handler of a pipeline
    package      compiled pipeline files
    local        runs on this machine; each task is a process or a container
    remote       runs on a cluster (run_status: their tasks and pods)

``kfp`` is imported only inside the functions that need it.
"""
