"""Singular values of attention: Figure 1 of the paper, and the choice of k by them."""
