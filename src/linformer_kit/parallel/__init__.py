"""Several devices: sequence parallelism and sharded models."""
