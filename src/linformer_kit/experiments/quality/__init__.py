"""Quality of encoders: Table 2, embeddings, and the families that can be linearised."""
