"""MNIST and FEMNIST: reading, which images a task holds, models, tasks by writer."""

import dataclasses
import gzip
import hashlib
import math
import os
import pickle
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from mnist_files import idx, register_mnist
from small_tasks import slow_sums, some_models
from vocabulary import each, given, refuses, st
from writers_of_digits import digits_of_writers, png, put_femnist, table_of

from mfdl import data, files, tasks
from mfdl.commands import main
from mfdl.errors import MissingExtra


@given(50, shape=st.lists(st.integers(0, 5), max_size=4), seed=st.integers(0, 2**32 - 1))
def test_an_idx_file_is_read_as_it_was_written(shape, seed):
    array = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.gz"
        path.write_bytes(idx(array))
        read = data.read_idx(path)
    assert read.dtype == np.uint8
    assert read.shape == tuple(shape)
    np.testing.assert_array_equal(read, array)


@each(
    "content, message",
    (b"not gzip", "cannot be read as gzip"),
    (idx(np.arange(2000) % 251)[:-9], "cannot be read as gzip"),
    (gzip.compress(b"", mtime=0), "is not an IDX file of unsigned bytes, it starts with nothing"),
    (gzip.compress(b"\0\0\x08", mtime=0), "is not an IDX file"),
    (gzip.compress(b"\x89PNG1234", mtime=0), "it starts with 89504e47"),
    (idx(np.zeros(3), kind=13), "is not an IDX file of unsigned bytes, it starts with 00000d01"),
    (gzip.compress(b"\0\0\x08\x03\0\0\0\x01", mtime=0), "is not an IDX file"),
    (gzip.compress(b"\0\0\x08\x01\0\0\0\x05abcd", mtime=0), r"must hold 5 bytes for shape \(5,\), got 4"),
    (gzip.compress(b"\0\0\x08\x01\0\0\0\x03abcd", mtime=0), r"must hold 3 bytes for shape \(3,\), got 4"),
)
def test_files_that_are_not_idx(tmp_path, content, message):
    (tmp_path / "file.gz").write_bytes(content)
    refuses(message, data.read_idx, tmp_path / "file.gz")


IMAGES = np.random.default_rng(0).integers(0, 256, (110, 28, 28)).astype(np.uint8)
LABELS = np.arange(110) % 10


@pytest.fixture
def small(monkeypatch, tmp_path):
    return register_mnist(monkeypatch, tmp_path, IMAGES, LABELS, num_train=80)


TRAIN, TEST = data.mnist_files("train"), data.mnist_files("test")


def test_the_full_set(small):
    home = small(*TRAIN, *TEST)
    assert [tasks.mnist(3, home, source=name).name for name in ("10k", "full")] == ["mnist-10k", "mnist"]
    task = tasks.mnist(4, home)
    assert (task.name, len(task.targets), len(task.test_targets)) == ("mnist", 80, 30)
    assert task.features.dtype == np.float32
    np.testing.assert_allclose(task.features, IMAGES[:80].reshape(80, 784) / 255, rtol=1e-6)
    np.testing.assert_array_equal(task.targets, LABELS[:80])
    np.testing.assert_allclose(task.test_features, IMAGES[80:].reshape(30, 784) / 255, rtol=1e-6)
    np.testing.assert_array_equal(task.test_targets, LABELS[80:])
    assert tasks.load("mnist-mlp", 4, small()).name == "mnist-mlp"


@pytest.mark.parametrize("present", [TEST, (*TEST, TRAIN[1])])
def test_the_test_images_alone_are_split_and_named(small, present):
    home = small(*present)
    task = tasks.mnist(3, home)
    assert (task.name, len(task.targets), len(task.test_targets)) == ("mnist-10k", 25, 5)
    together = np.concatenate([task.features, task.test_features])
    images = IMAGES[80:].reshape(30, 784).astype(np.float32) / np.float32(255)
    rows = [int(np.flatnonzero((images == image).all(axis=1))[0]) for image in together]
    assert sorted(rows) == list(range(30))  # each image once, in train or test
    assert rows != sorted(rows)
    np.testing.assert_array_equal(np.concatenate([task.targets, task.test_targets]), LABELS[80:][rows])
    np.testing.assert_array_equal(tasks.mnist(5, home).features, task.features)  # one split for all
    assert tasks.load("mnist-mlp", 3, home).name == "mnist-10k-mlp"
    assert tasks.mnist(3, home, source="10k").content_hash == task.content_hash
    refuses("could not fetch mnist/train", tasks.mnist, 3, home, source="full")


@pytest.mark.parametrize("present", [(), TEST[:1], TRAIN])
def test_without_the_test_images_the_full_set_is_fetched(small, present):
    refuses("could not fetch mnist/.*MFDL_DATA", lambda: tasks.mnist(3, small(*present)))


def test_a_fraction_of_the_train_records(small):
    home = small(*TRAIN, *TEST)
    whole, fifth, two_fifths = (tasks.mnist(3, home, fraction=fraction) for fraction in (1, 0.2, 0.4))
    assert [len(task.targets) for task in (whole, fifth, two_fifths)] == [80, 16, 32]
    used = [{row.tobytes() for row in task.features} for task in (fifth, two_fifths, whole)]
    assert used[0] < used[1] < used[2]
    np.testing.assert_array_equal(fifth.test_features, whole.test_features)
    np.testing.assert_array_equal(tasks.mnist(5, home, fraction=0.2).features, fifth.features)
    wanted = dict(zip((row.tobytes() for row in whole.features), whole.targets, strict=True))
    assert [wanted[row.tobytes()] for row in fifth.features] == fifth.targets.tolist()


def test_the_pool_holds_every_image_once_a_fifth_of_them_back(small):
    home = small(*TRAIN, *TEST)
    for options, name, images in (({}, "mnist-pool", IMAGES), ({"source": "10k"}, "mnist-10k-pool", IMAGES[80:])):
        task = tasks.mnist(3, home, split="pool", **options)
        assert (task.name, len(task.test_targets)) == (name, len(images) // 5)
        rows = images.reshape(len(images), 784).astype(np.float32) / np.float32(255)
        contents = [row.tobytes() for part in (task.features, task.test_features) for row in part]
        assert sorted(contents) == sorted(row.tobytes() for row in rows)
        label = dict(zip((row.tobytes() for row in rows), LABELS, strict=False))
        assert [label[row] for row in contents] == [*task.targets, *task.test_targets]
        fifth = tasks.load("mnist:split=pool,fraction=0.2", 5, home, **options)
        assert len(fifth.targets) == round(0.2 * len(task.targets))
        assert {row.tobytes() for row in fifth.features} < {row.tobytes() for row in task.features}
        np.testing.assert_array_equal(fifth.test_features, task.test_features)
    assert tasks.load("mnist-mlp:split=pool,source=full", 5, home).name == "mnist-pool-mlp"


@pytest.mark.parametrize(("model", "dimension"), [("linear", 7850), ("mlp", 784 * 128 + 128 + 1280 + 10)])
def test_models(small, model, dimension):
    task = tasks.mnist(3, small(*TRAIN, *TEST), model=model, partition="dirichlet:alpha=1,min_records=2")
    instance = pickle.loads(pickle.dumps(task.instance(0, 2, dtype=torch.float64)))
    assert instance.dimension == dimension
    module = task.build_module()
    assert [type(layer).__name__ for layer in module.modules() if not any(layer.children())] == (
        ["Linear"] if model == "linear" else ["Linear", "ReLU", "Linear"]
    )
    start = instance.evaluate(instance.initial_parameters)
    if model == "linear":
        np.testing.assert_allclose(start.loss, math.log(10), rtol=1e-12)
        np.testing.assert_allclose(start.accuracy, np.mean(task.test_targets == 0))
    else:
        assert (start.loss - math.log(10)).abs().max() < 0.5
        assert not torch.equal(task.instance(1, 2).initial_parameters, instance.initial_parameters.float())


@each(
    "changes, message",
    ({"model": "softmax"}, "unknown mnist model 'softmax'"),
    ({"source": "50k"}, "unknown mnist source '50k'"),
    ({"split": "fair"}, "unknown mnist split 'fair'"),
    ({"fraction": 0}, "fraction must be a finite number > 0, got 0"),
    ({"fraction": 1.5}, "fraction must be a number > 0 and <= 1, got 1.5"),
)
def test_parameters_that_cannot_be_used(small, changes, message):
    refuses(message, lambda: tasks.mnist(3, small(*TRAIN, *TEST), **changes))


def test_images_and_labels_must_fit(small, monkeypatch):
    home = small(*TRAIN, *TEST)
    content = idx(LABELS[:29])
    file = dataclasses.replace(data.REGISTRY[TEST[1]], sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(data.REGISTRY, TEST[1], file)
    (home / TEST[1]).write_bytes(content)
    refuses(r"got shapes \(30, 28, 28\) and \(29,\)", data.mnist, "test", home)
    refuses("unknown part of MNIST 'tset'; did you mean", data.mnist, "tset", home)


# Few records and steps: per-record gradients of the larger model are 100,000 numbers each.
@pytest.mark.parametrize(
    ("name", "fraction", "steps", "floor"),
    [("mnist", 0.1, 30, 0.75), pytest.param("mnist-mlp", 0.05, 20, 0.6, marks=pytest.mark.slow)],
)
def test_real_images_are_learned(name, fraction, steps, floor):
    home = os.environ.get("MFDL_DATA")
    if home is None or not all((Path(home) / file).is_file() for file in TEST):
        pytest.skip("MFDL_DATA holds no MNIST test images")
    task = tasks.load(name, 4, source="10k", fraction=fraction)
    assert task.name == name.replace("mnist", "mnist-10k")
    assert (len(task.targets), len(task.test_targets)) == (round(8333 * fraction), 1667)
    assert set(np.unique(task.targets)) == set(range(10))
    assert 0.1 < task.features.mean() < 0.16  # MNIST's mean pixel is 0.13
    instance = task.instance(0, 4)
    models = instance.initial_parameters
    for step in range(steps):
        mean = instance.clipped_gradient_sums(models, step, 1e3) / instance.public_batch_sizes[:, None].float()
        models = (models - 0.3 * mean).mean(0, keepdim=True).repeat(4, 1)
    assert instance.evaluate(models).accuracy.min() > floor


@pytest.fixture
def flower(monkeypatch):
    """Flower Datasets as a module that serves the stand-in; the list of its calls, or of what it raises."""
    calls = []

    class FederatedDataset:
        def __init__(self, **arguments):
            calls.append(arguments)

        def load_split(self, split):
            assert split == "train"
            if isinstance(calls[0], Exception):
                raise calls[0]
            return self

        def to_parquet(self, path):
            pq.write_table(table_of(*digits_of_writers(4, 5)), path)

    monkeypatch.setitem(sys.modules, "flwr_datasets", types.SimpleNamespace(FederatedDataset=FederatedDataset))
    return calls


def test_it_is_fetched_once_whole_and_in_its_order(flower, tmp_path):
    images, characters, writers = data.femnist(4, tmp_path)
    assert flower == [{"dataset": "flwrlabs/femnist", "partitioners": {}, "shuffle": False}]
    wanted = digits_of_writers(4, 5)
    for got, expected in zip((images, characters, writers), (*wanted[:2], np.arange(20) // 5), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert data.fetch(data.FEMNIST, tmp_path) == tmp_path / "femnist" / "train.parquet"
    assert (len(flower), [path.name for path in (tmp_path / "femnist").iterdir()]) == (1, ["train.parquet"])


def test_the_command_fetches_and_lists_it(flower, tmp_path, capsys):
    assert main(["data", "fetch", "femnist", "--data-home", str(tmp_path)]) == 0
    assert main(["data", "list", "--data-home", str(tmp_path)]) == 0
    assert "femnist/train.parquet" in capsys.readouterr().out


@pytest.mark.parametrize(("before", "during"), [(None, "0"), ("1", "1")])
def test_flower_is_imported_with_its_telemetry_off_unless_the_user_turned_it_on(tmp_path, monkeypatch, before, during):
    """A stand-in that reads the variable as flwr_datasets/common/telemetry.py of version 0.5 does, at import."""
    monkeypatch.setenv(data.TELEMETRY, str(before))  # so that the end of the test restores it
    if before is None:
        monkeypatch.delenv(data.TELEMETRY)
    package = tmp_path / "flwr_datasets.py"
    package.write_text('import os\nenabled = os.getenv("FLWR_TELEMETRY_ENABLED", "1")\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    del sys.modules["flwr_datasets"]
    with pytest.raises(files.NotDelivered, match="FederatedDataset"):
        data.download_femnist(tmp_path / "train.parquet", "")
    stand_in = sys.modules["flwr_datasets"]
    assert stand_in.enabled == during


@pytest.mark.parametrize("error", [ConnectionError("no route\nto the host"), ValueError("another version")])
def test_a_failed_download_leaves_nothing_and_names_the_way_out(flower, tmp_path, error):
    flower.insert(0, error)
    refuses(f"could not fetch femnist.*{str(error).splitlines()[0]}.*put the Parquet", data.femnist, 1, tmp_path)
    assert not list((tmp_path / "femnist").iterdir())


def test_without_flower_datasets_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    refuses(r"pip install 'mfdl\[femnist\]', or put", tasks.load, "femnist", 2, tmp_path, error=MissingExtra)
    put_femnist(tmp_path, num_writers=1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refuses("reading .*train.parquet needs", data.femnist, 1, tmp_path, error=MissingExtra)


@pytest.mark.peer
def test_the_groups_of_writers_are_those_of_flower_datasets(tmp_path, monkeypatch):
    flwr_datasets = pytest.importorskip("flwr_datasets", reason="needs pip install 'mfdl[femnist]'")
    folder = tmp_path / "source" / "data"
    folder.mkdir(parents=True)
    images, characters, names = digits_of_writers(12, 20)
    pq.write_table(table_of(images, characters, names), folder / "train-00000-of-00001.parquet")
    monkeypatch.setattr(data, "FEMNIST_SOURCE", str(folder.parent))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    task = tasks.femnist(4, tmp_path, writers=3)
    partitioner = flwr_datasets.partitioner.GroupedNaturalIdPartitioner(partition_by="writer_id", group_size=3)
    theirs = flwr_datasets.FederatedDataset(dataset=str(folder.parent), partitioners={"train": partitioner}, seed=421)
    for node in range(4):
        rows = theirs.load_partition(node)
        hers = {row["bytes"] for row in rows["image"]}
        trained = task.features[task.owners(0) == node]
        assert len(trained) == 48
        assert {png((255 * image[0]).round().astype(np.uint8)) for image in trained} <= hers


WRITTEN, CHARACTERS, NAMES = digits_of_writers(3, 4)
WHOLE = table_of(WRITTEN, CHARACTERS, NAMES)


@each(
    "table, message",
    (WHOLE.drop_columns("writer_id"), "cannot be read as FEMNIST .*writer_id"),
    (table_of(WRITTEN[:, :20], CHARACTERS, NAMES), r"an image of shape \(20, 28\) and type uint8"),
    (table_of(WRITTEN, CHARACTERS + 55, NAMES), "characters from 55 to 64"),
    (WHOLE.set_column(0, "image", [["text"] * 12]), "cannot be read as FEMNIST"),
    (WHOLE.set_column(0, "image", [[{"bytes": png(WRITTEN[0])[:60]}] * 12]), "cannot be read as FEMNIST"),
    (b"nothing", "cannot be read as FEMNIST"),
    (table_of(WRITTEN[:8], CHARACTERS[:8], NAMES[:8]), "has records of 2 writers, and 3 are needed"),
)
def test_other_files_are_refused(tmp_path, table, message):
    file = tmp_path / "femnist" / "train.parquet"
    file.parent.mkdir()
    file.write_bytes(table) if isinstance(table, bytes) else pq.write_table(table, file)
    refuses(message, data.femnist, 3, tmp_path)


def test_each_node_holds_its_writers_and_a_fifth_of_each_is_held_back(tmp_path):
    images, characters, _ = digits_of_writers(12, 20)
    task = tasks.load("femnist:writers=3", "path:n=4", put_femnist(tmp_path))
    assert (task.name, task.kind, task.num_nodes) == ("femnist-3-writers", "classification", 4)
    assert task.features.shape == (4 * 48, 1, 28, 28)
    assert len(task.test_targets) == 4 * 12
    row_of = {image.tobytes(): row for row, image in enumerate(images)}

    def rows(features):
        return np.array([row_of[(255 * image).round().astype(np.uint8).tobytes()] for image in features])

    train, test = rows(task.features), rows(task.test_features)
    assert sorted([*train, *test]) == list(range(240))
    np.testing.assert_array_equal(task.owners(0), train // 60)
    np.testing.assert_array_equal(task.owners(0), task.owners(5))
    np.testing.assert_array_equal(np.bincount(test // 60), [12] * 4)
    np.testing.assert_array_equal(task.targets, characters[train])
    np.testing.assert_array_equal(task.test_targets, characters[test])
    assert tasks.femnist(1, tmp_path).name == "femnist"
    refuses("of 12 writers, and 40 are needed", tasks.femnist, 4, tmp_path)


@pytest.mark.parametrize("clip_norm", [0.5, 1e3])
def test_clipped_gradients_of_the_network_are_those_of_autograd_record_by_record(tmp_path, clip_norm):
    task = tasks.femnist(2, put_femnist(tmp_path), writers=1)
    instance = task.instance(3, 4, dtype=torch.float64)
    assert instance.dimension == 102_142
    models = some_models(instance, scale=0.05)
    sums = instance.clipped_gradient_sums(models, 2, clip_norm)
    torch.testing.assert_close(sums, slow_sums(instance, models, 2, clip_norm), rtol=1e-6, atol=1e-7)
    sizes = instance.mask[:, 2].sum(1)
    assert (sums.norm(dim=1) <= clip_norm * sizes).all()
