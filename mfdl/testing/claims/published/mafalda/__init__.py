"""Claims of the unified matrix-factorization paper (MAFALDA-SGD): arXiv:2510.17480.

Cases are small graphs, integers and encoders. Views are written out, O = A G + B Z with Metropolis-Hastings weights,
and their Grams come from pseudo-inverses. Losses are squared sensitivities per unit record shift and noise variance
where nothing else is said. Where two matrices are claimed to be one, the claim is a distance of 0.
"""

from .factorization import (
    algorithm_1_noise,
    algorithm_2_cholesky,
    anti_pgd_sensitivity,
    appendix_d_commutation,
    bsr_as_coded,
    bsr_square_root,
    clip_is_replace_one,
    lemma_10_cholesky,
    lemma_10_commutation,
    lemma_10_root,
    workload_diagonals,
)
from .knowledge import (
    decor_received_messages,
    equation_12_own_noise,
    known_noise_appended_rows,
    lemma_11_factorization,
    lemma_11_known_gradients,
    lemma_11_nothing_known_moves,
    theorem_5_ldp,
    theorem_5_pndp_below_ldp,
)
from .theorem_7 import (
    equation_8_square,
    figure_2_tighter,
    remark_8_equality,
    theorem_7_adaptive,
    theorem_7_adaptive_ldp,
    theorem_7_echelon,
    theorem_7_square_root,
)

__all__ = [
    "algorithm_1_noise",
    "algorithm_2_cholesky",
    "anti_pgd_sensitivity",
    "appendix_d_commutation",
    "bsr_as_coded",
    "bsr_square_root",
    "clip_is_replace_one",
    "decor_received_messages",
    "equation_8_square",
    "equation_12_own_noise",
    "figure_2_tighter",
    "known_noise_appended_rows",
    "lemma_10_cholesky",
    "lemma_10_commutation",
    "lemma_10_root",
    "lemma_11_factorization",
    "lemma_11_known_gradients",
    "lemma_11_nothing_known_moves",
    "remark_8_equality",
    "theorem_5_ldp",
    "theorem_5_pndp_below_ldp",
    "theorem_7_adaptive",
    "theorem_7_adaptive_ldp",
    "theorem_7_echelon",
    "theorem_7_square_root",
    "workload_diagonals",
]
