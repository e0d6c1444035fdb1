"""Quality of encoders: Table 2, embeddings, and ways to embed long texts."""
