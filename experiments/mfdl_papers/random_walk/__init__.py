"""Random walks, arXiv:2510.19934: a token that is passed on."""
