"""Mistakes with tasks, Datasets and training, and settings that are rarely meant: each with its way out."""

import copy
import functools

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from vocabulary import each, refuses
from wrong_turns import TASK, A, D, G, M, P, W, entropy, linear, require_refused, same, task, x, y

import mfdl
from mfdl import UnsupportedMechanism, replay, tasks

PAIRS = TensorDataset(torch.tensor(x), torch.tensor(y))
COPY = "functools.partial(copy.deepcopy, module)"


class Listed(Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Endful(Dataset):
    def __getitem__(self, i):
        return x[i], y[i]


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


class Image:
    """As PIL's are, by the module of its class."""


Image.__module__ = "PIL.Image"


UNLIKE = Listed((np.ones(3), 0), (np.ones(4), 1))
REFUSED = [
    (lambda: tasks.Task(G, "regression", x, y, x, y, linear, entropy, 4), ["text", "got Graph"]),
    (lambda: task(lipschitz="1"), ["lipschitz must be a finite number >= 0", "got '1'"]),
    (lambda: task(build_module=linear()), ["the module Linear itself", COPY]),
    (lambda: task(build_module=nn.Linear), ["in_features", "functools.partial(Linear, ...)"]),
    (lambda: task(build_module=None), ["build_module", "got None"]),
    (lambda: task(loss="cross-entropy"), ["got 'cross-entropy'", "cross_entropy"]),
    (lambda: task(loss=nn.CrossEntropyLoss), ["the class CrossEntropyLoss, not called"]),
    (lambda: task(loss=nn.CrossEntropyLoss(weight=torch.ones(2))), ["class weights cancel", "reduction='sum'"]),
    (lambda: task(loss=nn.MSELoss()), ["outputs (2,)", "of its class", "got MSELoss", "kind='regression'"]),
    (lambda: task(loss=nn.functional.l1_loss), ["got function", "cross_entropy"]),
    (
        lambda: task(kind="regression", build_module=lambda: linear(1), loss=lambda out, t: (out - t) ** 2),
        ["got shape (1,)", "reduce it to one number"],
    ),
    (lambda: task(features=PAIRS), ["got TensorDataset", "train=dataset"]),
    (lambda: task(test_features=DataLoader(PAIRS)), ["got DataLoader", "test=dataset"]),
    (lambda: task(features=torch.tensor(x, requires_grad=True)), ["requires grad", "give features.detach().cpu()"]),
    (lambda: task(features=sp.csr_array(x)), ["of object", "give features.toarray()"]),
    (lambda: task(features=np.full((40, 3), "Lyon")), ["<U4", "OneHotEncoder"]),
    (lambda: task(features=x.astype(int), test_features=x.astype(int)), ["Linear fails", "integers", "give floats"]),
    (lambda: task(targets=None, test_targets=None), ["got no targets, no test_targets", "train and test"]),
    (lambda: task(targets=np.eye(2)[y]), ["got shape (40, 2)", "targets.argmax(1)"]),
    (lambda: task(targets=y[:, None]), ["got shape (40, 1)", "targets.ravel()"]),
    (lambda: task(targets=y.astype(float)), ["float64", "targets.astype(int)", "kind='regression'"]),
    (lambda: task(targets=np.array(["a", "b"])[y]), ["<U1", "np.unique(targets, return_inverse"]),
    (lambda: task(targets=y + 1), ["got 2 in row 1", "number them from 0: targets - 1"]),
    (lambda: task(targets=2 * y - 1), ["got -1 in row 0", "np.unique(targets, return_inverse"]),
    (lambda: task(targets=np.arange(40)), ["got 39 in row 39", "more outputs"]),
    (
        lambda: task(build_module=lambda: nn.Sequential(nn.BatchNorm1d(3), linear())),
        ["BatchNorm1d", "use GroupNorm or LayerNorm"],
        UnsupportedMechanism,
    ),
    (lambda: task(partition=3), ["got int", "Fixed(owners)"]),
    (lambda: tasks.digits(W), ["got GossipMatrix", "give its num_nodes"]),
    (lambda: task(train=DataLoader(PAIRS), test=PAIRS), ["train", "DataLoader", "give loader.dataset"]),
    (lambda: task(train=Endless(), test=PAIRS), ["IterableDataset Endless", "list(dataset)"]),
    (lambda: task(train=Endful(), test=PAIRS), ["train", "got Endful without a length", "define __len__"]),
    (lambda: task(train=PAIRS, test=PAIRS, features=x), ["train or test and also features"]),
    (lambda: task(train=PAIRS), ["test must be a Dataset too", "random_split"]),
    (lambda: task(train="mnist", test=PAIRS), ["train", "got 'mnist'", "TensorDataset(x, y)"]),
    (lambda: task(train=(x, y), test=PAIRS), ["got ndarray at item 0", "TensorDataset("]),
    (lambda: task(train=Listed({"x": 1}), test=PAIRS), ["got dict at item 0"]),
    (lambda: task(train=Listed((x[0], 0, 1)), test=PAIRS), ["got 3 parts", "gives pairs"]),
    (lambda: task(train=Listed((Image(), 0)), test=PAIRS), ["PIL image at item 0", "ToTensor()"]),
    (lambda: task(train=UNLIKE, test=PAIRS), ["(3,) at item 0 and (4,) at item 1", "resize or pad"]),
    (lambda: task(train=Listed(), test=PAIRS), ["train must hold at least one record"]),
    (lambda: replay(A, TASK), ["got LinearAlgorithm", "mfdl.calibrate(algorithm"]),
    (lambda: replay(M, "digits"), ["got 'digits'", "mfdl.tasks.digits(graph)"]),
    (lambda: replay(M, PAIRS), ["got TensorDataset", "mfdl.tasks.from_module"]),
    (lambda: replay(M, task(5)), ["task has 5 nodes", "has 4", "mechanism's graph"]),
    (lambda: replay(M, TASK, seeds=3), ["seeds must be a list", "got 3"]),
    (lambda: replay(M, TASK, key=torch.Generator()), ["got Generator", "from_entropy()"]),
    (lambda: replay(M, TASK, seeds=[0], device="gpu"), ["'gpu'", "use cpu"]),
    (lambda: replay(M, TASK, seeds=[0], checkpoint_folder=3), ["checkpoint_folder must be a path", "got 3"]),
    (lambda: replay(M, TASK, seeds=[0], dtype="float32"), ["torch.float32", "got 'float32'"]),
]


@pytest.mark.parametrize("row", REFUSED)
def test_a_wrong_turn_is_refused_with_the_way_out(row):
    require_refused(*row)


WORKS = {
    "a Dataset": lambda: same(task(), task(train=PAIRS, test=PAIRS)),
    "a Dataset of pairs": lambda: same(task(), task(train=Listed(*zip(x, y, strict=True)), test=PAIRS)),
    "a list of pairs": lambda: same(task(), task(train=[*zip(x, y.tolist(), strict=True)], test=PAIRS)),
    "tensors": lambda: same(task(), task(features=torch.tensor(x), targets=torch.tensor(y))),
    "a module that is there": lambda: same(task(), task(build_module=functools.partial(copy.deepcopy, linear()))),
    "squares for numbers": lambda: (
        task(
            kind="regression", build_module=lambda: nn.Sequential(linear(1), nn.Flatten(0)), loss=nn.MSELoss(),
            targets=y * 1.0, test_targets=y * 1.0,
        ).num_nodes
        == 4
    ),
    "a loss with its own reduction": lambda: task(loss=nn.CrossEntropyLoss(reduction="sum")).num_nodes == 4,
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
def test_what_looks_odd_and_works(name):
    assert WORKS[name]()


def test_tables_of_pandas_are_arrays():
    pandas = pytest.importorskip("pandas")
    table, column = pandas.DataFrame(x, columns=list("abc")), pandas.Series(y)
    tables = {"features": table, "targets": column, "test_features": table, "test_targets": column}
    assert same(task(), task(**tables))
    refuses(r"of object; give features.to_numpy\(float\)", lambda: task(features=table.assign(city="Lyon")))
    refuses(r"features must be finite .* got nan in row", lambda: task(features=table.mask(table > 1)))


IDENTITY = mfdl.gossip.from_array(np.eye(4))


def maps(size: float):
    return mfdl.algorithms.from_maps({"P": np.eye(4), "Q": -np.eye(4), "K": size * W.dense()}, P)


WARNED = {
    "no averaging": (lambda: mfdl.Dynamics(IDENTITY), ["4 nodes", "never average", "metropolis_hastings"]),
    "no averaging in any round": (lambda: mfdl.Dynamics(mfdl.gossip.sequence([IDENTITY, IDENTITY])), ["never average"]),
    "a wide root": (lambda: mfdl.algorithms.bsr(D, P, bandwidth=9), ["bandwidth 9", "T = 6 steps", "at most 6"]),
    "a wide inverse": (lambda: mfdl.algorithms.bisr(D, P, bandwidth=9), ["bandwidth 9", "T = 6 steps"]),
    "a wide encoder": (lambda: mfdl.factorization.square_root_encoder(3, 4), ["bandwidth 4", "T = 3 steps"]),
    "wide bands": (lambda: mfdl.algorithms.toeplitz(D, mfdl.EveryStep(6), bandwidth=9), ["bandwidth 9", "T = 6"]),
    "maps that grow": (lambda: maps(1.5), ["unstable", "1.5 times", "in 6 steps", "rows of K that sum to 1"]),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_setting_that_is_rarely_meant_is_a_warning_with_the_way_out(name):
    call, words = WARNED[name]
    with pytest.warns(mfdl.errors.UnusualSetting) as caught:
        call()
    (message,) = {str(warning.message) for warning in caught}
    assert [word for word in words if word not in message] == [], message


@pytest.mark.filterwarnings("error::mfdl.errors.UnusualSetting")
@each(
    "call",
    lambda: mfdl.Dynamics(mfdl.gossip.from_array(np.eye(1))),
    lambda: mfdl.Dynamics(mfdl.gossip.sequence([IDENTITY, W])),
    lambda: mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W, 0.1, momentum=0.99), P),
    lambda: mfdl.algorithms.bsr(D, P, bandwidth=6), lambda: mfdl.algorithms.bisr(D, P), lambda: maps(1.0),
    lambda: mfdl.algorithms.gradient_tracking(mfdl.Dynamics(W, 0.1), P),
    lambda: mfdl.algorithms.exact_diffusion(mfdl.Dynamics(W, 0.1), P), lambda: mfdl.algorithms.delayed_dsgd(D, P),
    lambda: mfdl.algorithms.two_hop_dsgd(D, P),
)  # fmt: skip
def test_no_false_alarm(call):
    call()
