"""The figures of the MAFALDA paper; what they claim is in papers/mafalda.toml."""
