"""The five stages, one module each: ``run(config, inputs, outputs)``, called by CLI, KFP component and tests."""
