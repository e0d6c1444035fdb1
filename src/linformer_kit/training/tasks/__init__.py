"""What is trained: each task gives batches and a loss, and knows nothing of the loop."""
