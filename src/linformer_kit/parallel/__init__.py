"""Sequence parallelism: one text over several devices."""
