"""Several devices: a sequence or a model in pieces."""
