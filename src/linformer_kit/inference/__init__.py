"""Inference with trained models: classify texts and fill masks."""
