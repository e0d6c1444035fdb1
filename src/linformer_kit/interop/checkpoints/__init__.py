"""Checkpoints of other libraries: fairseq's, folders of transformers, and files of sentence-transformers."""
