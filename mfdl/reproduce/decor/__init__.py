"""The figures of the DECOR paper; what they claim is in papers/decor.toml."""
