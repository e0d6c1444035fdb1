"""Linformer attention in pure torch: equation 7, projections, padding, kernels."""
