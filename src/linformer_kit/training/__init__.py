"""Training: the trainer, checkpoints, callbacks and metrics. Knows models and batches, and no experiment."""
