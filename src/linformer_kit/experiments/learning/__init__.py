"""Learning studies: comparisons of many small pretrainings."""
