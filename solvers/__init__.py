"""Factorization solvers: arrays and class labels in, a certified factorization out."""
