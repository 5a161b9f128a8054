"""Gaussian differential privacy, arXiv:1905.02383."""
