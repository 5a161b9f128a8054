"""One law over all that the archive writes: read back equal, never read damaged, never half written; and no code."""

import dataclasses
import os

import numpy as np
import pytest
import safetensors.numpy
import scipy.sparse as sp
import torch
from archives import edited, flipped, parsed
from effort import examples
from hypothesis.extra import numpy as numbers
from storable_objects import SAMPLES
from vocabulary import dynamics_on, each, example, given, refuses, st

import mfdl
from mfdl import BallsInBins, Cyclic, InvalidInput, Mechanism, Run, algorithms, archive, factorization
from mfdl.factorization.solutions import Solutions
from mfdl.spec import storable, storable_names
from mfdl.training import checkpoint
from mfdl.training.run import SeedRun

RING = dynamics_on("ring:n=4", 0.5)
ASKED = {"trust": mfdl.trust.Eavesdropper(), "adjacency": "zero-out", "clip_norm": 0.7}
MECHANISM = mfdl.calibrate(algorithms.bsr(RING, Cyclic(2, 3), bandwidth=2), mfdl.Privacy(**ASKED), noise_std=2.0)
OF_BINS = mfdl.calibrate(algorithms.dp_dsgd(RING, BallsInBins(2, 3)), mfdl.Privacy(**ASKED), noise_std=2.0)


def a_run(mechanism):
    losses = np.array([[1.0, 2, 3, 4], [0.5, 1, 2, np.inf]])
    seed = SeedRun(7, np.array([0, 6]), losses, None, np.ones((4, 2)), False, 6, 0.25, "ab")
    return Run(mechanism, "synthetic", (seed,), chance_loss=1.5)


def saved(path, value):
    value.save(path)


def save_factorization(path, value):
    factorization.save(path, value, header={"graph": "ring:n=4"}, grams=np.eye(6))


def load_factorization(path):
    return factorization.load(path).factorization


def save_checkpoint(path, models):
    checkpoint.save(path.parent, step=3, models=models, metadata={"key_id": "ab", "loss": [0.5, None]})


def save_solution(path, solved):
    Solutions(path.parent).put(path.stem, solved)


def load_solution(path):
    if (solved := Solutions(path.parent).get(path.stem)) is None:
        raise InvalidInput("solved anew")
    return solved


MODELS = {"state": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor([1, 2])}
SOLVED = {
    "shared": factorization.factorize(RING, Cyclic(2, 3)),
    "of each node": factorization.factorize_nodes(RING, Cyclic(2, 3)),
    "over nodes": factorization.optimal_covariance(RING),
    "over both": factorization.optimal_per_mode(RING, Cyclic(2, 2)),
    "structured": factorization.factorize_long(RING, Cyclic(2, 3), max_iterations=5, progress=False),
}
WRITTEN = {
    "mechanism": (MECHANISM, saved, Mechanism.load),
    "mechanism of balls-in-bins": (OF_BINS, saved, Mechanism.load),
    "run": (a_run(MECHANISM), saved, Run.load),
    "run of balls-in-bins": (a_run(OF_BINS), saved, Run.load),
    "checkpoint": (MODELS, save_checkpoint, lambda path: checkpoint.load(path.parent).models),
    "solution": (dataclasses.replace(SOLVED["shared"], seconds=0.0), save_solution, load_solution),
    **{f"factorization {name}": (solved, save_factorization, load_factorization) for name, solved in SOLVED.items()},
}
"""What is written, how, and how it is read."""


@pytest.fixture(params=WRITTEN)
def law(request, tmp_path):
    """(path, value, write, read), written."""
    value, write, read = WRITTEN[request.param]
    path = tmp_path / "folder" / checkpoint.FILE
    write(path, value)
    return path, value, write, read


def test_what_is_written_is_read_back_equal(law):
    """Equal in everything that is stored: written again it is the same bytes; content hashes are equal."""
    path, value, write, read = law
    before, again = path.read_bytes(), read(path)
    assert getattr(again, "content_hash", None) == getattr(value, "content_hash", None)
    assert type(again) is type(value)
    write(path, again)
    assert (path.read_bytes(), [file.name for file in path.parent.iterdir()]) == (before, [path.name])


@pytest.mark.hypothesis  # as a property, it has more places at full effort
def test_a_flipped_bit_anywhere_and_a_file_cut_short_are_refused(law):
    path, _, _, read = law
    data, kind = path.read_bytes(), parsed(path)[0]["kind"]
    places = np.random.default_rng(0).integers(0, len(data), examples(300).max_examples).tolist()
    for damaged in (*(flipped(data, place) for place in places), *(data[:place] for place in places[:20]), data + b"x"):
        path.write_bytes(damaged)
        refuses(path.name, archive.read, path, kind)
    for place in (0, 40, len(data) // 2, len(data) - 1):
        path.write_bytes(flipped(data, place))
        refuses(".", read, path)


def test_files_that_are_missing_or_others_are_refused(law):
    (path, _, _, read), kind = law, parsed(law[0])[0]["kind"]
    others = [b"", b"[" * 100_000, np.random.default_rng(0).bytes(500), safetensors.numpy.save({"a": np.ones(3)})]
    for content in others:
        path.write_bytes(content)
        refuses(f"is no {kind} that mfdl wrote", archive.read, path, kind)
        refuses(".", read, path)
    path.unlink()
    refuses(f"cannot read .*; {archive.KINDS[kind].remedy}", archive.read, path, kind)
    refuses(".", read, path)
    path.mkdir()
    refuses(".", read, path)


def test_another_kind_or_format_is_refused_in_words(law):
    path, _, _, read = law
    kind = parsed(path)[0]["kind"]
    other = "run" if kind != "run" else "mechanism"
    refuses(f"holds a {kind}, not a {other}; read it with ", archive.read, path, other)
    edited(path, lambda header, _: header.update(format=archive.FORMAT + 1))
    refuses("a newer mfdl wrote it", archive.read, path, kind)
    edited(path, lambda header, _: header.update(format="1"))
    refuses(".", read, path)


def test_a_write_that_fails_leaves_the_old_file(law, monkeypatch):
    path, value, write, _ = law
    path.write_bytes(b"the old one")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    refuses("No space left", write, path, value)
    assert (path.read_bytes(), list(path.parent.iterdir())) == (b"the old one", [path])


NUMBERS = st.sampled_from(sorted(archive.TYPES)).flatmap(
    lambda name: numbers.arrays(name, numbers.array_shapes(min_dims=0, min_side=0, max_side=3))
)
PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | NUMBERS
    | NUMBERS.filter(lambda array: array.size).map(lambda array: array.flat[0]) | st.text().map(np.str_)
    | NUMBERS.filter(lambda array: array.ndim == 2).map(lambda array: sp.csr_array(array.astype(np.float64)))
)  # fmt: skip
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


def same(value, other):
    """Equal in type and content; nan is equal to nan."""
    if type(value) is not type(other):
        return False
    if sp.issparse(value):
        return value.shape == other.shape and all(
            same(getattr(value, part), getattr(other, part)) for part in ("data", "indices", "indptr")
        )
    if isinstance(value, np.ndarray | np.generic):
        equal_bytes = np.asarray(value).tobytes() == np.asarray(other).tobytes()
        return value.dtype == other.dtype and value.shape == other.shape and equal_bytes
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other or value != value


@given(100, content=st.dictionaries(st.text(), VALUES, max_size=3))
@example(content={"text of numpy": np.str_("a\x00")})
def test_any_plain_values_come_back_with_their_types(tmp_path_factory, content):
    path = archive.write(tmp_path_factory.mktemp("a") / "file", "run", content)
    assert same(archive.read(path, "run"), content)


def test_arrays_are_read_only_and_stored_once(tmp_path):
    array = np.arange(1000.0)
    path = archive.write(tmp_path / "a", "run", {"one": array, "other": [array], "big endian": array.astype(">f8")})
    assert path.stat().st_size < 2.5 * array.nbytes
    values = archive.read(path, "run")
    assert values["one"] is values["other"][0]
    assert np.array_equal(values["big endian"], array)
    with pytest.raises(ValueError, match="read-only"):
        values["one"][0] = 1.0


def test_every_storable_class_has_a_sample():
    assert sorted(SAMPLES) == sorted(storable_names())


@pytest.mark.parametrize("name", SAMPLES)
def test_an_object_comes_back_as_it_was(tmp_path, name):
    value = SAMPLES[name]()
    path = archive.write(tmp_path / "a", "run", {"value": value})
    again = archive.read(path, "run")["value"]
    assert type(again).__name__ == name
    assert getattr(again, "content_hash", None) == getattr(value, "content_hash", None)
    archive.write(tmp_path / "again", "run", {"value": again})
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


class Unmarked(Cyclic):
    pass


@dataclasses.dataclass(frozen=True)
class AnyData:
    number: int = 1


@each(
    "value, message",
    (Unmarked(2, 3), "holds no Unmarked; list its patterns with mfdl.participation.Explicit"),
    (AnyData(), "holds no AnyData; replace it by plain values"),
    ([{"deep": (len,)}], "deep of value of the run cannot be saved: a file holds no builtin_function"),
    (b"secret", "holds no bytes"), ({1: 2}, "holds no dict"), (np.array(["text"]), "is no array of real numbers"),
    (np.array([1j]), "is no array of real numbers"), (np.array([object()]), "is no array of real numbers"),
)  # fmt: skip
def test_what_is_code_or_no_number_is_not_written(tmp_path, value, message):
    refuses(message, archive.write, tmp_path / "a", "run", {"value": value})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["os", "system", "AnyData", "Unmarked", "Participation", ""])
def test_no_class_is_made_that_is_not_marked(tmp_path, name):
    path = archive.write(tmp_path / "a", "run", {"value": Cyclic(2, 3)})
    edited(path, lambda header, _: header["content"].update(value={"is": name, "fields": {}}))
    refuses("does not hold a run", archive.read, path, "run")


def test_two_classes_of_one_name_are_not_both_storable():
    refuses("Cyclic of .* cannot be stored beside", lambda: storable(type("Cyclic", (), {})), error=TypeError)


def test_indices_beside_the_array_are_refused(tmp_path):
    path = archive.write(tmp_path / "a", "run", {"value": sp.csr_array(np.eye(3))})

    def change(header, arrays):
        arrays[header["content"]["value"]["sparse"]["indices"]][0] = 99

    refuses("does not hold a run", lambda: archive.read(edited(path, change), "run"))
