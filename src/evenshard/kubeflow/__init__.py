"""How does the loop run on Kubeflow Pipelines? What components/ and pipelines/ stand on, and how a pipeline is run.

    image.py     which image every stage runs in
    cluster.py   what each stage gets of the cluster: processors, memory, GPUs, retries, time, secrets
    pod_spec.py  ... as Kubernetes has it
    in_pod.py    what a component does around its stage: files, MLflow, metrics
    measuring.py how a pod measures: in one process, or with torchrun on all its GPUs
    again.py     what is tried again, in the same pod
    place_request.py  what the pipeline ``place`` takes
    package.py   a pipeline as a file
    local.py     a pipeline on this machine; containers.py, with each task in a container
    remote.py    a pipeline on a cluster; token.py, who asks; api_errors.py, what its errors mean
    run_tasks.py how the tasks of a run are doing; pods.py, why a pod does not start; status_text.py, as people read it

``kfp`` is imported only inside the functions that need it.
"""
