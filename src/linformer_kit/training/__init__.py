"""Training: loop, checkpoints, metrics and tasks. Imports models and data, but no experiments."""
