"""CorN-DSGD, arXiv:2501.14644v2: noise with a covariance R over nodes."""
