"""Search for the cheapest placement: initial placements, annealing, lower bounds and infeasibility checks.

::

    search, near_placement    search for the best placement, also within a limit of moved bytes
    space, sharding_option, shard_builder    sharding options of each table, and their costs
    greedy, placer      initial placements, by rules of thumb and by greedy placement
    annealing, proposals, chains, moves      improve many placements at once, as arrays
    lower_bound, device_times, bound_lines   lower bounds of the step time, for all placements
    legal_parts, items, cuts, integer_program    find a legal placement, whatever its cost
    infeasibility       explain why tables do not fit
"""
