"""Data files of users as tables: every format is read back as it was written, and a damaged file is refused."""

import csv
import gzip
import io

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file
from vocabulary import assume, each, given, refuses, st

from mfdl.errors import InvalidInput
from mfdl.training.tasks.table_files import TableColumn, read_table

NUMBERS = st.floats(-1e9, 1e9, width=32) | st.integers(-1000, 1000)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6)
NAMES = WORDS.filter(lambda name: not name.lstrip("-+.").isdigit())


@st.composite
def tables(draw):
    """Names and columns of equal length, of numbers or of words with at least one that is no number."""
    names = draw(st.lists(NAMES, min_size=2, max_size=5, unique=True))
    rows = draw(st.integers(1, 12))
    kinds = draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names)))
    entries = [NUMBERS if numeric else WORDS.map(lambda word: f"w{word}") for numeric in kinds]
    columns = zip(names, entries, strict=True)
    return {name: draw(st.lists(entry, min_size=rows, max_size=rows)) for name, entry in columns}


def as_text(table, separator=",", end="\n", quoting=csv.QUOTE_MINIMAL):
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=separator, lineterminator=end, quoting=quoting)
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return buffer.getvalue()


def assert_is(table, expected):
    assert [column.name for column in table.columns] == [*expected]
    for column, values in zip(table.columns, expected.values(), strict=True):
        if isinstance(values[0], str):
            assert column.kind == "words"
            assert column.labels() == values
        else:
            np.testing.assert_array_equal(column.numbers("file"), np.array(values, dtype=float))


@given(
    100, tables(), st.sampled_from([(".csv", ","), (".csv", ";"), (".csv", "\t"), (".tsv", "\t"), (".CSV", ",")]),
    st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(["utf-8", "utf-8-sig"]), st.booleans(),
)  # fmt: skip
def test_a_text_is_read_back(tmp_path_factory, table, form, end, quoting, encoding, packed):
    suffix, separator = form
    assume(separator == "," or not any({*",;"} & {*name} for name in table))  # the header decides
    path = tmp_path_factory.mktemp("text") / f"own{suffix}{'.gz' if packed else ''}"
    raw = as_text(table, separator, end, quoting).encode(encoding)
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert_is(read_table(path), table)


@given(50, tables())
def test_parquet_is_read_back(tmp_path_factory, table):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path_factory.mktemp("parquet") / "own.parquet"
    columns = {name: x if isinstance(x[0], str) else list(map(float, x)) for name, x in table.items()}
    parquet.write_table(arrow.table(columns), path)
    assert_is(read_table(path), table)


@given(50, st.integers(1, 12), st.lists(st.integers(2, 3), min_size=1, max_size=2), st.data())
def test_archives_and_libsvm_files_are_read_back(tmp_path_factory, rows, shape, data):
    folder, size = tmp_path_factory.mktemp("arrays"), int(np.prod(shape))
    cells = data.draw(st.lists(NUMBERS, min_size=rows * size, max_size=rows * size))
    x, y = np.array(cells, dtype=np.float64).reshape(rows, *shape), np.arange(rows) - 3
    np.savez_compressed(folder / "own.npz", X=x, y=y, node=np.arange(rows), X_test=x[:1], y_test=y[:1])
    table = read_table(folder / "own.npz")
    for part, expected in ((table, x), (table.test, x[:1])):
        values = np.stack([column.numbers("file") for column in part.columns], axis=1)
        np.testing.assert_array_equal(values.reshape(len(expected), *(part.record_shape or shape)), expected)
    np.testing.assert_array_equal(table.target.numbers("file"), y)
    assert table.node.labels() == [str(row) for row in range(rows)]
    flat = x.reshape(rows, -1)
    assume((flat[:, -1] != 0).any())  # trailing zeros are not in the file
    dump_svmlight_file(flat, y, str(folder / "own.svm"), zero_based=False)
    table = read_table(folder / "own.svm")
    assert [column.name for column in table.columns] == [str(1 + at) for at in range(size)]
    read = np.stack([column.numbers("file") for column in table.columns], axis=1)
    np.testing.assert_allclose(read, flat, rtol=1e-15)
    np.testing.assert_array_equal(table.target.numbers("file"), y)


def written(folder, suffix):
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40.0)
    table = {"a": x[:, 0].tolist(), "b": x[:, 1].tolist(), "y": y.tolist()}
    path = folder / f"own{suffix}"
    if suffix == ".npz":
        np.savez(path, X=x, y=y)
    elif suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table(table), path, write_page_checksum=True)
    else:
        path.write_bytes(gzip.compress(as_text(table).encode()))
    return path


def contents(table):
    columns = [*table.columns, *([] if table.target is None else [table.target])]
    return [(column.name, column.cells.tolist()) for column in columns]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv.gz"])
@given(60, st.data())
def test_a_damaged_file_is_refused_or_read_as_it_was(tmp_path_factory, suffix, data):
    path = written(tmp_path_factory.mktemp("damaged"), suffix)
    raw, before = bytearray(path.read_bytes()), contents(read_table(path))
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(raw))
    try:
        after = contents(read_table(path))
    except InvalidInput:
        return
    if suffix == ".parquet":  # names and types in the footer have no checksum
        assert [cells for _, cells in after] == [cells for _, cells in before]
    else:
        assert after == before


@each(
    "name, content, message",
    ("own.csv", b"", "must hold records, got an empty file"),
    ("own.csv", b"a,b\n", "must hold at least one record, got none"),
    ("own.csv", b"\n\n", "must begin with names of columns, got no line"),
    ("own.csv", b"a,b\n1,2\n3\n", "line 3: found 1 fields, and the header names 2 columns"),
    ("own.csv", b'a,b\n1,"2\n', "line 2: quotes or fields do not fit together"),
    ("own.csv", b'a,b\n1,"2"x\n', "line 2: quotes or fields do not fit together"),
    ("own.csv", b"a,a\n1,2\n", "names of columns of 'own.csv' must differ, got 'a' 2 times"),
    ("own.csv", b",b\n1,2\n", r"got none for column 1; .*to_csv\(index=False\)"),
    ("own.csv", b"0.5,1\n1,2\n", "must begin with names of columns, got the numbers 0.5, 1"),
    ("own.csv", b"a,b\n\xff,2\n", "line 2: this is not UTF-8 text"),
    ("own.csv", b"a,b\n\x00,2\n", r"line 2: this is not UTF-8 text \(NUL byte\)"),
    ("own.csv", b"PAR1....", "must be text by its suffix, and is a Parquet file"),
    ("own.csv", b"PK\x03\x04", "and is a zip archive; unpack"),
    ("own.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)[:-4], "is damaged"),
    ("own.svm", b"1 1:a\n", "is damaged or of another format .scikit-learn says"),
    ("own.svm", b"1\n2\n", "got no feature"),
    ("own.npz", b"PK\x03\x04", "is damaged or of another format .numpy says"),
    ("own.txt", b"a,b\n", "must end in .csv, .tsv, .* rename it"),
    ("own.xlsx", b"a,b\n", "must end in .csv, .tsv, .*read_excel"),
)
def test_what_is_no_table_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    refuses(message, read_table, tmp_path / name)


@each(
    "arrays, message",
    ({"X": np.ones((2, 2))}, "must hold the arrays X and y, got no y"),
    ({"x": np.ones((2, 2)), "y": np.ones(2)}, "got 'x'; did you mean 'X'"),
    ({"X": np.ones(2), "y": np.ones(2)}, r"must have one row per record, got shape \(2,\)"),
    ({"X": np.ones((2, 2)), "y": np.ones((2, 1))}, r"got shape \(2, 1\); one column is y.ravel"),
    ({"X": np.ones((2, 2)), "y": np.ones(3)}, "a value for each of 2 records"),
    ({"X": np.ones((2, 2)), "y": np.ones(2), "X_test": np.ones((2, 2))}, "both X_test and y_test"),
    ({"X": np.ones((2, 2), dtype=complex), "y": np.ones(2)}, "must hold numbers, got complex128"),
    ({"X": np.array([[None, 1]]), "y": np.ones(1)}, "is damaged or of another format .numpy says: Object arrays"),
)
def test_archives_that_fit_no_task_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "own.npz", **arrays)
    refuses(message, read_table, tmp_path / "own.npz")


def test_a_missing_file_is_refused_with_the_nearest(tmp_path):
    (tmp_path / "own.csv").write_text("a,b\n1,2\n")
    refuses(r"does not exist; did you mean 'own.csv'\?", read_table, tmp_path / "ovn.csv")
    (tmp_path / "folder.csv").mkdir()
    refuses("cannot be read", read_table, tmp_path / "folder.csv")


def column(*cells):
    texts = np.empty(len(cells), dtype=object)
    texts[:] = cells
    return TableColumn("a", texts)


@each(
    "cells, kind, labels",
    (("1", "1.0", "+1", "-0"), "integers", ["1", "1", "1", "0"]),
    (("0.5", "1e0"), "numbers", ["0.5", "1"]),
    (("TRUE", "false"), "true or false", ["true", "false"]),
    (("1", "b"), "words", ["1", "b"]),
    (("1_000", "2"), "words", ["1_000", "2"]),
    (("9007199254740993", "9007199254740992"), "integers", ["9007199254740993", "9007199254740992"]),
    (("", "NA"), "empty", ["", "NA"]),
)
def test_kinds_and_labels(cells, kind, labels):
    assert column(*cells).kind == kind
    assert column(*cells).labels() == labels


@each(
    "cells, message",
    (("1", "", "NA"), r"must have a value in every row, got '' in row 2 \(2 of 3 rows lack one\).*drop=a"),
    (("1", "nan"), "got 'nan' in row 2"),
    (("1", "Oslo"), "must hold numbers, got 'Oslo' in row 2; number its values.* drop=a"),
    (("1,5", "2"), "got '1,5' in row 1; write decimals with a point"),
    (("1", "inf"), "must hold finite numbers, got inf in row 2"),
)
def test_what_is_no_number_is_refused(cells, message):
    refuses(message, lambda: column(*cells).numbers("'own.csv'"))


def test_parquet_types(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    import datetime
    import decimal

    columns = {
        "flag": [True, False], "whole": [1, None], "exact": [decimal.Decimal("1.5"), decimal.Decimal("2.5")],
        "category": arrow.array(["x", "y"]).dictionary_encode(), "day": [datetime.date(2024, 1, 1)] * 2,
    }  # fmt: skip
    parquet.write_table(arrow.table(columns), tmp_path / "own.parquet")
    table = read_table(tmp_path / "own.parquet").by_name
    assert {name: table[name].kind for name in table} == {
        "flag": "true or false", "whole": "integers", "exact": "numbers", "category": "words", "day": "date32[day]",
    }  # fmt: skip
    assert table["flag"].numbers("file").tolist() == [1, 0]
    refuses("got NaN in row 2", table["whole"].numbers, "file")
    refuses(r"must hold numbers, got date32\[day\]", table["day"].numbers, "file")
