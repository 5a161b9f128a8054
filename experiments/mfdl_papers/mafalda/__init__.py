"""MAFALDA, arXiv:2510.17480: decentralized learning as a matrix factorization."""
