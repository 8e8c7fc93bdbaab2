"""Records -> laws -> model file."""
