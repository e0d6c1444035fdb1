"""Text to training blocks: corpus, tokenizer, packing, masking."""
