"""Theorems 1 and 2 of the paper as experiments."""
