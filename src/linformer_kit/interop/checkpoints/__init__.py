"""Convert checkpoints of other libraries to Linformers: one file for each format."""
