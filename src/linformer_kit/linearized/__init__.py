"""Linearisation of transformers' encoders: attention becomes linear, in-place, and all other weights are kept."""
