"""Singular values of attention: Figure 1 of the paper, and k chosen by them."""
