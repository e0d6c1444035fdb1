"""What encoders are worth on tasks: Table 2, embeddings, families that can be made linear."""
