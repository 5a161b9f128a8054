"""DECOR, arXiv:2405.01031: noise that neighbours add with opposite signs."""
