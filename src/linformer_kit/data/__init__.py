"""Data: corpora, labelled texts, tokenizers, packing, masking and caches."""
