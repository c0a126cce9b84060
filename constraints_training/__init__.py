"""Train constraint models on a language model's frozen embeddings."""
