"""Models and tokenizers of other libraries, and what transformers knows of ours."""
