"""Inference with trained models: classify and embed texts, fill masks."""
