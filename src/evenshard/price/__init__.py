"""The step time of a placement: device models, links, exchanges, and records of measured and predicted costs.

::

    hardware, evidence  names of hardware and profiles, and the error of a device model
    costs, step_time    the cost of a placement, and the step that its phases make
    gpu_profile, shard_work, device_model    kernels of a simulated GPU; offload: tables outside of device memory
    link, link_model, collectives            exchanges between devices
    kernel_calls        fused kernel calls of a placement, and the interface of their price
    loads, simulated_price                   prices of changing placements, by the device model
    step                the predicted step of a placement
"""
