"""Claims of CorN-DSGD, arXiv:2501.14644v2, its first version Whisper, and the Gaussian conversions they rest on.

Noise has covariance R over nodes, drawn afresh in each step; r = max_i [R^-1]_ii, L = log(1 / delta), one coordinate.
Truths are dense views, integrals of densities, ranks over the rationals and semidefinite programs.
"""
