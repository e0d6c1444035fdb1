"""Load and convert models and tokenizers of other libraries; register ours with transformers."""
