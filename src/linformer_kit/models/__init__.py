"""The Linformer encoder and its heads, as models of transformers."""
