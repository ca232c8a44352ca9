"""From a request in an engineer's words to a placement with its cost.

::

    request, rules      what is asked: tables, devices, memory, rules by table name; knobs, cluster: as a user states it
    optimizers, model   the optimizer of each table, and the model that answers
    place               the answer: search, prices (pricing), others and savings (rivals), measuring; refusals: capacity
    answer, file        the answer, and placement.json with its JSON schema; describe: what a file of ours is
    memory              what fills devices and hosts, and what tables outside of device memory take
    near_placement      requests near an earlier answer; output_order, means_by_rows: rules that take several searches
"""
