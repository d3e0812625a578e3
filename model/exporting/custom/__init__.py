"""Code that goes beside exported weights, for transformers to import from there."""
