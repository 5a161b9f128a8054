"""The figures of the CorN-DSGD paper; what they claim is in papers/corn.toml."""
