"""Step time of a placement: device models, links, collectives, and measured and predicted costs.

::

    hardware, evidence  names of hardware and profiles, and the error of a device model
    costs, step_time    the cost of a placement, and the step time from its phases
    gpu_profile, shard_work, device_model    kernels of a simulated GPU; offload: tables outside of device memory
    link, link_model, collectives            communication between devices
    kernel_calls        fused kernel calls of a placement, and the interface of prices
    loads, simulated_price                   compute times, updated for each change of a search
    step                the predicted step of a placement
"""
