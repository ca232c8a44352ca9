"""The stages of the loop, and the decisions after it.

::

    stage, loop, rounds   what a stage declares, the declarations of the loop's stages, and its rounds
    runner                a stage run and tracked, for commands and components alike
    generate_tables, benchmark, merge_costs, train_cost, train_policy, evaluate   the stages themselves: ``run`` of each
    propose               what benchmark measures; standings, report: what evaluate compares and shows
    import_costs, record_outcome, calibrate_device   beside the loop: costs that others measured; how a pipeline
                          ended; a device model fitted to costs or traces
    observe, observe_text what the traces of a training say, beside predictions
    decisions/            promote a model, compare loops, retrain or not
"""
