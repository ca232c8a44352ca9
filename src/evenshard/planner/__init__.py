"""The path from a request to an answer, comparisons of answers, and placement.json.

::

    request, rules      the request: tables, devices, memory, rules by table name; knobs, hosts: its input
    optimizers          the optimizer of each table
    place               the answer: search, model, prices (pricing), baselines; refusals: capacity
    answer, file        the answer, and placement.json with its JSON schema
    memory              the memory of devices and hosts, and the cost of tables outside of device memory
    intervals, diff, difference, changed_parts, explain    two answers, and one table's alternatives
    what_if             comparison of machines
    output_order        orders of pooled outputs
"""
