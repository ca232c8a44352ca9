"""Stages of the training loop, from tables to evaluation, and decisions based on measurements.

::

    stage, loop, rounds   classes for declaring stages, the stages of the loop, and the order of their runs
    runner                runs a stage and logs it to MLflow, for commands and components
    generate_tables, benchmark, train_cost, train_policy, evaluate   the code of each stage
    propose               placements that benchmark measures
    sharder_comparison, report   results of evaluate, and their tables and plots
    import_costs          merges the parts of a round, and imports shards that users measured
    calibrate_device      fits a device model to measured costs
    observe               compares traces of a training job with predictions
    decisions/            whether to promote a model, to retrain it, or to move a training job to another placement
"""
