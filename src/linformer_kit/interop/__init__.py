"""Load and convert models and tokenizers of other libraries."""
