"""FEMNIST on a stand-in: fetched by Flower Datasets, read from its file, as a task by writer, clipped."""

import sys
import types

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refuses
from small_tasks import slow_sums, some_models
from writers_of_digits import digits_of_writers, png, put_femnist, table_of

from mfdl import data, files, tasks
from mfdl.commands import main
from mfdl.data import library_files
from mfdl.errors import MissingExtra

torch.set_num_threads(1)


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
    np.testing.assert_array_equal(images, wanted[0])
    np.testing.assert_array_equal(characters, wanted[1])
    np.testing.assert_array_equal(writers, np.arange(20) // 5)
    assert data.fetch(data.library_files.FEMNIST, tmp_path) == tmp_path / "femnist" / "train.parquet"
    assert len(flower) == 1
    assert [path.name for path in (tmp_path / "femnist").iterdir()] == ["train.parquet"]


def test_the_command_fetches_and_lists_it(flower, tmp_path, capsys):
    assert main(["data", "fetch", "femnist", "--data-home", str(tmp_path)]) == 0
    assert main(["data", "list", "--data-home", str(tmp_path)]) == 0
    assert "femnist/train.parquet" in capsys.readouterr().out


@pytest.mark.parametrize(("before", "during"), [(None, "0"), ("1", "1")])
def test_flower_is_imported_with_its_telemetry_off_unless_the_user_turned_it_on(tmp_path, monkeypatch, before, during):
    """A stand-in that reads the variable as flwr_datasets/common/telemetry.py of version 0.5 does, at import."""
    monkeypatch.setenv(library_files.TELEMETRY, str(before))  # so that the end of the test restores it
    if before is None:
        monkeypatch.delenv(library_files.TELEMETRY)
    package = tmp_path / "flwr_datasets.py"
    package.write_text('import os\nenabled = os.getenv("FLWR_TELEMETRY_ENABLED", "1")\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    del sys.modules["flwr_datasets"]
    with pytest.raises(files.NotDelivered, match="FederatedDataset"):
        library_files.download_femnist(tmp_path / "train.parquet", "")
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
    """Whatever its seed, as the code of the paper calls it."""
    flwr_datasets = pytest.importorskip("flwr_datasets", reason="needs pip install 'mfdl[femnist]'")
    folder = tmp_path / "source" / "data"
    folder.mkdir(parents=True)
    images, characters, names = digits_of_writers(12, 20)
    pq.write_table(table_of(images, characters, names), folder / "train-00000-of-00001.parquet")
    monkeypatch.setattr(library_files, "FEMNIST_SOURCE", str(folder.parent))
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


IMAGES, CHARACTERS, NAMES = digits_of_writers(3, 4)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (table_of(IMAGES, CHARACTERS, NAMES).drop_columns("writer_id"), "cannot be read as FEMNIST .*writer_id"),
        (table_of(IMAGES[:, :20], CHARACTERS, NAMES), r"an image of shape \(20, 28\) and type uint8"),
        (table_of(IMAGES, CHARACTERS + 55, NAMES), "characters from 55 to 64"),
        (table_of(IMAGES, CHARACTERS, NAMES).set_column(0, "image", [["text"] * 12]), "cannot be read as FEMNIST"),
        (
            table_of(IMAGES, CHARACTERS, NAMES).set_column(0, "image", [[{"bytes": png(IMAGES[0])[:60]}] * 12]),
            "cannot be read as FEMNIST",
        ),
        (table_of(IMAGES[:8], CHARACTERS[:8], NAMES[:8]), "has records of 2 writers, and 3 are needed"),
    ],
)
def test_other_files_are_refused(tmp_path, table, message):
    (tmp_path / "femnist").mkdir()
    pq.write_table(table, tmp_path / "femnist" / "train.parquet")
    refuses(message, data.femnist, 3, tmp_path)


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "train.parquet").write_bytes(b"nothing")
    refuses("cannot be read as FEMNIST", data.femnist, 1, tmp_path)


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
    """Convolutions and GroupNorm by per-record gradients, the linear layer by factors."""
    task = tasks.femnist(2, put_femnist(tmp_path), writers=1)
    instance = task.instance(3, 4, dtype=torch.float64)
    assert instance.dimension == 102_142
    models = some_models(instance, scale=0.05)
    sums = instance.clipped_gradient_sums(models, 2, clip_norm)
    torch.testing.assert_close(sums, slow_sums(instance, models, 2, clip_norm), rtol=1e-6, atol=1e-7)
    sizes = instance.mask[:, 2].sum(1)
    assert (sums.norm(dim=1) <= clip_norm * sizes).all()
