"""Foreign checkpoints as Linformers: one file for each format."""
