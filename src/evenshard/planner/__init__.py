"""The path from a request to an answer, comparisons of answers, and placement.json.

::

    request, rules      what is asked: tables, devices, memory, rules by table name; knobs, hosts: as a user states it
    optimizers          the optimizer of each table
    place               the answer: search, model, prices (pricing), baselines; refusals: capacity
    answer, file        the answer, and placement.json with its JSON schema
    memory              what fills devices and hosts, and what tables outside of device memory take
    intervals, diff, difference, changed_parts, explain    two answers, and one table's alternatives
    what_if             one question about many machines
    output_order        orders of pooled outputs: rules that take several searches
"""
