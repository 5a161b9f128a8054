"""Claims of the unified matrix-factorization paper (MAFALDA-SGD): arXiv:2510.17480.

Cases are small graphs, integers and encoders. Views are written out, O = A G + B Z with Metropolis-Hastings weights,
and their Grams come from pseudo-inverses. Losses are squared sensitivities per unit record shift and noise variance
where nothing else is said. Where two matrices are claimed to be one, the claim is a distance of 0.
"""
