"""The Linformer encoder and its heads, as transformers models."""
