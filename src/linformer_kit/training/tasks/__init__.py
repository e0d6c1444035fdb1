"""Training tasks: each provides batches and a loss, and is independent of the loop."""
