"""Stages of the training loop, from tables to evaluation, and the decisions after it.

::

    stage, loop, rounds   declarations of a stage, of the loop's stages and of its rounds
    runner                runs a stage and logs it to MLflow, for commands and components
    generate_tables, benchmark, train_cost, train_policy, evaluate   ``run`` of each stage
    propose               placements that benchmark measures
    sharder_comparison, report   results of evaluate, and their tables and plots
    import_costs          cost datasets from files: parts of a round, and shards that users measured
    calibrate_device      device model fitted to measured costs
    observe               traces of a training job compared with predictions
    decisions/            promote a model, retrain it, move a running training to another placement
"""
