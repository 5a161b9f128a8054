"""What solvers find: objective and certified bound by the command line, and the noise that the encoders make.

Solvers stop at a tolerance, so the last digits differ from machine to machine; how far is below, with room.
"""

import json

import numpy as np
from _cases import built, mechanism_names, mfdl_prints
from _stored import compare

GRAPH = ("--graph", "path:n=4")
STEPS = ("--epochs", "2", "--period", "2")
OVER_NODES = ("corn", "corn-pairwise", "decor")
FACTORIZED = ("per-mode", "d-mf", "mafalda", "mafalda-classes", "mafalda-l", "joint", "kronecker", *OVER_NODES)


def test_objectives_and_their_bounds():
    def solved(name):
        code, out = mfdl_prints(
            "factorize", *GRAPH, *(() if name in OVER_NODES else STEPS), "--mechanism", name, "--json"
        )
        answer = json.loads(out)
        return {"objective": answer["objective"], "lower_bound": answer["lower_bound"], "code": code}

    compare("objectives", {name: solved(name) for name in FACTORIZED}, relative=1e-5)


def test_variance_of_the_noise_of_every_mechanism():
    """diag(N N^T): of each slot in each step, per unit of base noise."""
    schemes = {name: "balls-in-bins" if name.endswith("-bins") else "cyclic" for name in mechanism_names()}
    variances = {name: np.asarray(built(name, scheme).noise.variances()).tolist() for name, scheme in schemes.items()}
    compare("variances", variances, relative=1e-5, absolute=1e-9)
