"""Graph files of lines: edges or adjacency matrices separated by tabs, commas, semicolons or blanks.

`graphs.load` documents what a file may hold. A separator counts if it is that of the suffix or of every line; where two
separators give two graphs, the file is refused.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph_formats import FORMATS, LISTED
from .file_links import INTEGER, GraphFile, Links, matrix_links, positive_weight

SEPARATORS = {"\t": "tab", ",": "comma", ";": "semicolon", " ": "blank"}
Rows = list[tuple[int, list[str]]]
"""Fields of lines, with the number of the line from 1."""


def read_text(file: GraphFile) -> Links:
    numbered = [(i, line.rstrip(" ")) for i, line in enumerate(file.text().split("\n"), start=1) if line.strip(" \t")]
    lines = [(i, line) for i, line in numbered if line.lstrip(" \t")[0] not in "#%"]
    comments = [(i, line.lstrip(" \t")) for i, line in numbered if line.lstrip(" \t")[0] in "#%"]
    if not lines:
        raise file.refused(" holds no edge; write one edge per line, as `a b` or `a,b`")
    sample = lines[1 if INTEGER.fullmatch(lines[0][1].strip()) and len(lines) > 1 else 0][1]
    known = {".tsv": "\t", ".csv": "\t,; "}.get(file.suffix, "\t, ")
    answers: dict[str, Links] = {}
    refusals = []
    for mark in [mark for mark in known if mark in sample or (mark == " " and "\t" in sample)] or [known[-1]]:
        try:
            answer = _EdgeLines(file, lines, comments, mark).links()
        except InvalidInput as error:
            refusals.append(error)
            continue
        labels = [str(label) for edge in answer.edges for label in edge] if mark == " " else []
        if not all(map(INTEGER.fullmatch, labels)):  # blanks may belong to names, or follow commas
            if answers and ("\t" in answers or file.suffix == ".csv" or any(a.strip(",") != a for a in labels)):
                continue
            if file.suffix == ".csv":
                refusals.append(file.malformed(lines[0][0], "no comma separates columns, and names may have blanks"))
                continue
        answers[mark] = answer
    if not answers:
        raise refusals[0]
    shapes = ({frozenset(edge) for edge in links.edges} | set(links.nodes) for links in answers.values())
    if len(answers) > 1 and any(shape != first for first in [next(shapes)] for shape in shapes):
        raise _doubtful(file, " or ".join(f"{SEPARATORS[mark]} separated" for mark in answers))
    return next(iter(answers.values()))


def _doubtful(file: GraphFile, formats: str) -> InvalidInput:
    return file.refused(f" could be {formats}, which are different graphs; the suffix decides between {LISTED}")


@dataclasses.dataclass
class _EdgeLines:
    file: GraphFile
    lines: list[tuple[int, str]]
    comments: list[tuple[int, str]]
    mark: str

    def links(self) -> Links:
        rows = [(number, self._fields(number, line)) for number, line in self.lines]
        self._refuse_comments(rows)
        matrix = self._matrix(rows)
        try:
            links = self._edges(rows)
        except InvalidInput:
            if matrix is None:
                raise
            return matrix_links(self.file, *matrix)
        if matrix is not None and (matrix[0] == matrix[0].T).all():
            raise _doubtful(self.file, "an adjacency matrix or an edge list with weights")
        return links

    def _fields(self, number: int, line: str) -> list[str]:
        if self.mark == " ":
            fields = re.split(r"[ \t]+", line.strip(" \t"))
            if "#" in fields[2:]:  # a comment, as # is no weight
                fields = fields[: fields.index("#", 2)]
            if fields[0][-1] == ":" or "{}" in fields[:2]:
                raise self.file.malformed(number, "this is a list of neighbours, not an edge; write one edge per line")
            if any(field[0] == '"' or field[-1] == '"' for field in fields):
                raise self.file.malformed(number, "quotes are read where commas or tabs separate, not blanks")
            return fields
        try:
            (row,) = csv.reader([line], delimiter=self.mark, strict=True, skipinitialspace=True)
        except (csv.Error, ValueError) as error:
            raise self.file.malformed(number, f"not {SEPARATORS[self.mark]} separated values ({error})") from None
        fields = [field.strip() for field in row]
        if '"' in line and fields != row:
            raise self.file.malformed(number, "a name begins or ends with a blank; rename it")
        return fields

    def _refuse_comments(self, rows: Rows) -> None:
        """Refuses a comment that may be the edge of a node whose name begins with # or %."""
        labels = {field for _, row in rows for field in row} if self.comments else set()
        body = rows[1:] if "source" in map(str.lower, rows[0][1]) else rows
        integers = all(INTEGER.fullmatch(field) for _, row in body for field in row[:2])
        for number, line in self.comments:
            try:
                fields = self._fields(number, line)
            except InvalidInput:
                continue
            if len(fields) != len(rows[-1][1]) or all(_names_a_column(field.strip("#% ")) for field in fields[:2]):
                continue
            spaced = line.lstrip(line[0])[:1] in ("", " ", "\t")
            if not spaced or (not integers and (self.mark != " " or labels & set(fields))):
                raise self.file.malformed(
                    number,
                    "this is a comment or an edge; quote the name in a .csv file if it is an edge, else write "
                    f"{line[0]} and a blank before words without separators",
                )

    def _matrix(self, rows: Rows) -> tuple[NDArray[np.float64], list[str]] | None:
        """A square of at least 3 x 3 numbers, or with the same names in first row and column, and these names."""
        table, size = [row for _, row in rows], len(rows)
        if any(len(row) != size for row in table) or size < 2:
            return None
        head, labels = table[0], [row[0] for row in table[1:]]
        numbers = _are_numbers(labels)  # or entries of a matrix whose first one is damaged
        corner = self.lines[0][1].startswith(self.mark) if numbers or size == 2 else not _are_numbers(head[:1])
        if corner and sorted(head[1:]) == sorted(labels) and len(set(labels)) == len(labels):
            places = [head.index(label, 1) for label in labels]
            table = [[row[place] for place in places] for row in table[1:]]
        elif size == 2:
            return None
        else:
            labels = []
        return (np.array(table, dtype=np.float64), labels) if all(map(_are_numbers, table)) else None

    def _edges(self, rows: Rows) -> Links:
        file, count = self.file, None
        konect = re.match(r"%\s*(sym|asym|bip)\b", self.comments[0][1]) if self.comments else None
        if konect and konect[1] == "bip":
            raise file.malformed(self.comments[0][0], "the nodes of the two sides of a bipartite graph share numbers")
        if len(rows) > 1 and len(rows[0][1]) == 1 < len(rows[1][1]) and INTEGER.fullmatch(rows[0][1][0]):
            count, rows = int(rows[0][1][0]), rows[1:]
        columns = [field.lower() for field in rows[0][1]]
        width, kind = len(columns), None
        if header := "source" in columns or "target" in columns:
            if columns.count("source") != 1 or columns.count("target") != 1:
                raise file.malformed(rows[0][0], "a header needs one column Source and one column Target")
            first, second = columns.index("source"), columns.index("target")
            weight, kind = (columns.index(name) if name in columns else None for name in ("weight", "type"))
            rows = rows[1:]
            if not rows:
                raise file.refused(" holds a header but no edge; add one line per edge")
        else:
            first, second, weight = 0, 1, 2 if width > 2 else None
            if width not in (2, 3) and not (konect and width == 4):
                raise file.malformed(
                    rows[0][0],
                    f"found {width} column{'s' * (width != 1)}, expected `a b`, `a b weight`, or a header line "
                    "with the columns Source and Target",
                )
            _refuse_header(file, rows)
        pairs, weights = [], []
        for number, row in rows:
            if len(row) != width:
                raise file.malformed(number, f"found {len(row)} columns where the first line has {width}")
            if header and [field.lower() for field in row] == columns:
                raise file.malformed(number, "the header is there twice")
            if not row[first] or not row[second]:
                raise file.malformed(number, "a node label is empty")
            if weight is not None and row[weight] != "{}":  # as networkx writes it
                weights.append(positive_weight(file, row[weight], number))
            pairs.append((row[first], row[second]))
        one_way = kind is not None and any(row[kind].lower() == "directed" for _, row in rows)
        links = Links([*pairs], (), weights, one_way or bool(konect and konect[1] == "asym"))
        labels = [label for pair in pairs for label in pair]
        if all(map(INTEGER.fullmatch, labels)):
            if not header:
                self._refuse_counts(rows, np.array(labels, dtype=np.int64).reshape(-1, 2))
        elif _are_numbers(labels) and any(float(label) % 1 for label in labels):
            raise file.refused(
                ": the labels of all nodes are decimals, as in a matrix; mfdl.gossip.from_array reads a gossip matrix, "
                "and a name such as n0.5 is no number"
            )
        if count is not None:
            links.nodes = self._counted_nodes(count, rows, pairs)
        elif konect and len(self.comments) > 1 and (counts := re.fullmatch(r"%((?:\s*\d+){3})", self.comments[1][1])):
            edges, n, other = map(int, counts[1].split())
            links.nodes = [str(node) for node in range(1, n + 1)]
            if n != other or not {*labels} <= {*links.nodes} or (width == 2 and edges != len(pairs)):
                defect = f"the counts are not those of the {len(pairs)} lines of edges between nodes 1 to {n}"
                raise file.malformed(self.comments[1][0], defect)
        return links

    def _refuse_counts(self, rows: Rows, pairs: NDArray[np.int64]) -> None:
        """Refuses a first line that may count what follows, and what may be rows of a matrix."""
        (number, first), (a, b) = rows[0], pairs[0]
        if (len(first) == 3 and a == b and first[2] == str(len(rows) - 1)) or counts_edges(pairs):
            raise self.file.malformed(
                number,
                "the first line may count nodes and edges of an edge list, or of METIS (suffix .graph); put # and a "
                "blank before it if it does, and move it to the end if it is an edge",
            )
        names, lists = {*map(str, pairs.ravel().tolist())}, [{*row} for _, row in rows]
        firsts = {row[0] for _, row in rows}
        if firsts == names and 2 < len(names) == len(rows) and all(3 == len(row & names) == len(row) for row in lists):
            raise self.file.refused(
                " could be an edge list with weights or lists of neighbours, one of each node; write one edge per "
                "line, below a header with the columns Source, Target and Weight"
            )
        if len(rows) == 2 and len(first) == 3 and a == 0 and (pairs[0] == pairs[1][::-1]).all():
            raise _doubtful(self.file, "an edge list with weights or rows of an adjacency matrix")

    def _counted_nodes(self, n: int, rows: Rows, pairs: list[tuple[str, str]]) -> list[str]:
        """Nodes 0 to n - 1 of a file that begins with n and has each edge once or in both directions."""
        nodes, ends, mirror = [str(node) for node in range(n)], set(pairs), {(b, a) for a, b in pairs}
        known = set(nodes)
        for (number, _), pair in zip(rows, pairs, strict=True):
            if others := {*pair} - known:
                defect = f"node {min(others)!r} is none of the {n} nodes, 0 to {n - 1}, that the first line counts"
                raise self.file.malformed(number, defect)
        if len(ends) != len(pairs) or (ends != mirror and ends & mirror):
            raise self.file.malformed(self.lines[0][0], "a count, and then edges that are not all in both directions")
        if ends != mirror and n == len(pairs):
            raise _doubtful(self.file, "a count of nodes, or of edges, or METIS-like lists of neighbours")
        return nodes


def counts_edges(pairs: NDArray[np.int64]) -> bool:
    """Whether the first of several pairs may count the nodes and edges of the others."""
    (n, m), others = pairs[0].tolist(), pairs[1:]
    if len(others) == 0 or n < 2 or min(abs(m - len(others)), abs(2 * m - len(others))) > 2:
        return False
    ends = np.unique(np.sort(others, axis=1), axis=0)
    nodes = np.unique(ends)
    if (ends[:, 0] == ends[:, 1]).any() or nodes[0] < 0 or nodes[-1] > n:
        return False
    from_zero, from_one = nodes[-1] < n, nodes[0] == 1 and nodes[-1] == n and len(nodes) == n
    return bool((from_zero and abs(m - len(ends)) <= 1) or (from_one and m == len(ends)))


def _are_numbers(texts: Iterable[str]) -> bool:
    try:
        return bool(np.isfinite(np.array(list(texts), dtype=np.float64)).all())
    except ValueError:
        return False


COLUMN_NAMES = frozenset(
    f"{kind}{end}"
    for kind in ("", "node", "vertex", "user", "person")
    for end in ("", "id", "from", "to", "src", "dst", "source", "target", "head", "tail", "start", "end", "a", "b")
    if len(kind + end) > 1
)
"""Names of columns in files of edges, in lower case, without digits, separators and id."""


def _names_a_column(label: str) -> bool:
    plain = re.sub(r"[0-9 _.-]", "", label.lower())
    return plain in COLUMN_NAMES or plain.removesuffix("id").removesuffix("node") in COLUMN_NAMES


def _refuse_header(file: GraphFile, rows: Rows) -> None:
    """Refuses a first line that names columns by other words than Source and Target, which would be read as an edge."""
    (number, first), others = rows[0], [label for _, row in rows[1:] for label in row[:2]]
    names = first[:2]
    if not others or any(INTEGER.fullmatch(name) or name in others for name in names):
        return
    if all(map(_names_a_column, names)) or all(map(INTEGER.fullmatch, others)):
        raise file.malformed(
            number,
            f"{names[0]!r}, {names[1]!r} looks like a header, as neither is a node of another line; call the "
            "columns Source and Target, or put # before the line to leave it out; if it is an edge, move it to the end",
        )


_NO_BLANKS = {s for item in FORMATS for s in item.suffixes if item.reader != "read_text" or item.name == "TSV"}
LARGE_FILE = 2**20
"""Bytes from which a file is first tried as plain pairs of integers."""


def integer_edges(path: Path, at_least: int = LARGE_FILE) -> NDArray[np.int64] | None:
    """The pairs of a large file of lines `a b` of integers >= 0, shape (m, 2); None for any other, which is read with
    all its errors line by line. Cost: 30 bytes a byte of the file."""
    if path.suffix.lower() in _NO_BLANKS or not path.is_file() or path.stat().st_size < at_least:
        return None
    raw = path.read_bytes()
    if raw.translate(None, b"0123456789 \t\r\n") or re.search(rb"(?<![0-9])0[0-9]|\r(?!\n)", raw):
        return None
    text = np.frombuffer(raw, dtype=np.uint8)
    inside = text >= ord("0")
    starts = np.flatnonzero(inside & ~np.concatenate([[False], inside[:-1]]))
    ends = np.flatnonzero(inside & ~np.concatenate([inside[1:], [False]]))
    line = np.searchsorted(np.flatnonzero(text == ord("\n")), starts)
    pairs = starts.size > 0 and starts.size % 2 == 0 and (ends - starts).max() < 18
    if not pairs or (line[::2] != line[1::2]).any() or (np.diff(line[::2]) == 0).any():
        return None
    edges = np.fromstring(raw, dtype=np.int64, sep=" ").reshape(-1, 2)  # of text, which no other function reads so fast
    return None if counts_edges(edges) else edges
