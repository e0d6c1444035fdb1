"""Linformer attention, without transformers: equation 7, projections, padding, kernels."""
