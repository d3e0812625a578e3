"""Checkpoints in the formats of other software: Hugging Face's transformers, and GGUF."""
