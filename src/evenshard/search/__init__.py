"""Search for the cheapest placement: initial placements, annealing, lower bounds and infeasibility checks.

::

    search              one search: starts, annealing, the best placement; near_placement: near the placement in use
    space, sharding_option, shard_builder    the options of each table, and their costs
    greedy, placer      starts, such as rules of thumb, and greedy placement
    annealing, proposals, chains, moves      changes of many placements at once, as arrays
    lower_bound, device_times, bound_lines   lower bounds of all placements
    legal_parts, items, cuts, integer_program    a legal placement of any cost
    infeasibility       reasons why tables do not fit
"""
