"""From a request in an engineer's words to a placement with its cost.

::

    request, rules      what is asked: tables, devices, memory, rules by table name; knobs, cluster: as a user states it
    optimizers          the optimizer of each table
    place               the answer: search, model, prices (pricing), others (comparison); refusals: capacity
    answer, file        the answer, and placement.json with its JSON schema; describe: what a file of ours is
    memory              what fills devices and hosts, and what tables outside of device memory take
    output_order        orders of pooled outputs: rules that take several searches
"""
