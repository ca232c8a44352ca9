"""The stages of the loop, and the decisions after it.

::

    stage, loop, rounds   declarations: of a stage, of the loop's stages and of its rounds
    runner                runs and tracks a stage, for commands and components
    generate_tables, benchmark, train_cost, train_policy, evaluate   ``run`` of each stage
    propose               the placements of benchmark; sharder_comparison, report: the results of evaluate
    import_costs          cost datasets from files: parts of a round, and shards measured by others
    calibrate_device      a device model fitted to costs
    observe               traces of a training compared with predictions
    decisions/            promote a model, retrain or not, move a training or not
"""
