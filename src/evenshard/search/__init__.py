"""The search for the cheapest placement: its moves and starts, lower bounds, and reasons why tables do not fit.

::

    search              one search: starts, annealing, the best placement; near_placement: near one that is in use
    space, sharding_option, piece_builder    the options of each table, and their works
    greedy, placer      starts, such as rules of thumb, and tables placed by works
    annealing, proposals, chains, moves      changes of many placements at once, as arrays
    lower_bound, device_times, bound_lines   the least time of any placement
    legal_parts, items, cuts, integer_program    a legal placement where memory is tight, costs aside
    infeasibility       what is missing where tables do not fit
"""
