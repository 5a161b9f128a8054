"""Published privacy bounds, each as printed or as coded by its authors; what is wrong with it is in `facts`.

In: gossip matrices, graphs, covariances, noise levels. Out: `PublishedBound`. These exist to be compared with:
for a guarantee use the library's own accounting. Papers, by arXiv id:

- [CEBM22] 2206.05091, Muffliato, pairwise loss by distance in the graph.
- [DECOR] 2405.01031, noise that cancels between neighbours.
- [CorN] 2501.14644v2 and [Whisper] 2501.14644v1, noise with a covariance R over nodes.
- [PNF] 2510.19934, a token on a random walk.
- [MF] 2510.17480, decentralized learning as a matrix factorization.

What every one of them leaves out: pairwise bounds, where messages are hidden from the attacker, hold for
gradients fixed in advance at most. On the path u - w - v with two steps, a gradient of w that reacts to what u
sent has total variation 0.271, where Muffliato's bound of 1/3 for mu^2 allows 0.227.

One file per family: `muffliato`, `decor`, `corn` (with Whisper), `gram_sums` (matrix factorization) and `random_walk`
(with `walk_losses`); `bound` holds the result they share.
"""

from .bound import PublishedBound, Quantity
from .corn import (
    corn_equation_9_renyi,
    corn_equation_9b,
    corn_renyi,
    corn_theorem,
    inverse_diagonal_limit,
    whisper_theorem,
)
from .decor import COROLLARY_RANGE, DecorNoise, decor_accountant, decor_corollary, decor_theorem, decor_victims
from .gram_sums import sum_abs_gram, sum_abs_gram_as_printed
from .muffliato import muffliato_as_coded, muffliato_squared
from .random_walk import hitting_times, pn_f_dp, walk_known

__all__ = [
    "COROLLARY_RANGE",
    "DecorNoise",
    "PublishedBound",
    "Quantity",
    "corn_equation_9_renyi",
    "corn_equation_9b",
    "corn_renyi",
    "corn_theorem",
    "decor_accountant",
    "decor_corollary",
    "decor_theorem",
    "decor_victims",
    "hitting_times",
    "inverse_diagonal_limit",
    "muffliato_as_coded",
    "muffliato_squared",
    "pn_f_dp",
    "sum_abs_gram",
    "sum_abs_gram_as_printed",
    "walk_known",
    "whisper_theorem",
]
