"""Planner: answers placement requests, compares answers, and reads and writes placement.json.

::

    knobs, hosts, rules, request    user input, and the request made from it
    place, pricing, baselines       search for a placement, its predicted times, and other sharders' placements
    capacity                        errors for infeasible requests
    answer, file                    the answer, and placement.json with its JSON schema
    memory, optimizers              memory of devices and hosts, and the optimizer of each table
    diff, difference, intervals     comparison of two answers
    explain, changed_parts          the best changes of single tables
    what_if                         comparison of machines
    output_order                    orders of pooled outputs
"""
