"""Claims of the mafalda paper."""
