"""Records from any Dataset are those of its arrays."""

import numpy as np
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from mfdl.training import tasks


class Rows(Dataset):
    def __init__(self, features, targets):
        self.features, self.targets = features, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, row):
        return self.features[row], self.targets[row]


def flat_linear(size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 2))


def squared_sum(output, target):
    return (output.sum() - target) ** 2


@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    num_records=st.integers(3, 9),
    dtype=st.sampled_from([np.float32, np.float64]),
    classes=st.booleans(),
    seed=st.integers(0, 2**20),
)
@examples(30)
def test_a_task_of_a_dataset_is_that_of_its_arrays(shape, num_records, dtype, classes, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_records, *shape)).astype(dtype)
    y = rng.integers(0, 2, num_records) if classes else rng.standard_normal(num_records)
    loss = nn.functional.cross_entropy if classes else squared_sum
    kind = "classification" if classes else "regression"

    def made(**records):
        size = int(np.prod(shape))
        return tasks.from_module("same", 3, kind=kind, build_module=lambda: flat_linear(size), loss=loss, **records)

    tensors = torch.tensor(x), torch.tensor(y)
    some = rng.permutation(num_records)[:3]
    of_arrays = made(features=x, targets=y, test_features=x[some], test_targets=y[some])
    for whole in (TensorDataset(*tensors), Rows(x, y), Rows(*tensors), Rows(x.tolist(), y.tolist())):
        task = made(train=whole, test=Subset(whole, some.tolist()))
        assert task.content_hash == of_arrays.content_hash
        assert all(np.array_equal(task.owners(s), of_arrays.owners(s)) for s in range(2))


def test_a_dataset_is_read_once_so_what_it_draws_stays():
    class Drawn(Rows):
        def __getitem__(self, row):
            return self.features[row] + np.random.default_rng().standard_normal(3), self.targets[row]

    noisy = Drawn(np.zeros((6, 3)), np.arange(6) % 2)
    task = tasks.from_module(
        "drawn",
        2,
        kind="classification",
        build_module=lambda: flat_linear(3),
        loss=nn.functional.cross_entropy,
        train=noisy,
        test=noisy,
    )
    first, second = (task.instance(seed=0, period=3) for _ in range(2))
    assert torch.equal(first.features, second.features)
