"""The search at example level: what its labels are worth, and pairs that keep a budget inside the box."""

import numpy as np
import pytest

import mfdl
from mfdl_papers.decor import accountant as pairs


@pytest.mark.parametrize(("label", "library", "paper"), [(0.001, 0.83, 5.5), (0.1, 4.35, 112), (1.0, 7.51, 1012)])
def test_labels_of_the_code_are_divergences_of_one_step(label, library, paper):
    limit = pairs.largest_inverse(lambda inverse: pairs.coded(inverse) <= label)
    assert pairs.coded(limit) <= label
    assert pairs.coded(limit) == pytest.approx(label, rel=1e-5)
    assert pairs.example_level(limit) == pytest.approx(library, rel=5e-3)
    assert pairs.composed(limit) == pytest.approx(paper, rel=1e-2)


@pytest.mark.parametrize("spec", ["ring:n=6", "star:n=5", "complete:n=4"])
def test_pairs_stay_in_the_box_and_below_the_limit(spec):
    L = mfdl.node_covariances.laplacian(mfdl.graphs.load(spec)).toarray()
    limit = 2e4
    within = pairs.pairs_within(spec, limit, 7)
    assert within
    for (local, pair), inverse in within:
        assert pairs.LOCAL[0] <= local <= pairs.LOCAL[1]
        assert pairs.PAIR[0] <= pair <= pairs.PAIR[1] * (1 + 1e-8)
        worst = np.linalg.inv(local**2 * np.eye(len(L)) + pair**2 * L).diagonal().max()
        assert worst == pytest.approx(inverse)
        assert inverse <= limit
        assert inverse >= limit * (1 - 1e-6) or pair == pairs.PAIR[0]
