"""Counts what should become less: size, duplicated ideas, circular imports, names without meaning, words of pages.

    python experiments/house.py [--check] [--list COUNT] [--json] [--root DIR]

In: the Python files of `mfdl/`, `solvers/` and, if it exists, `experiments/mfdl_papers/`, tests and pages, read as
text; `reach-` counts import. Out: one row for each count with its limit; with `--check` the exit status is 1 if one is
above its limit, with `--list` the places behind one. Every limit is in `COUNTS` and is lowered when its count falls.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import networkx as nx
from rich.console import Console
from rich.table import Table

PACKAGES = {"mfdl": "mfdl", "mfdl_solvers": "solvers/mfdl_solvers", "mfdl_papers": "experiments/mfdl_papers"}
SHARED_FILE_NAMES = {"__init__.py", "__main__.py", "base.py"}
FEEDING = {"mfdl.training.drawn_batches"}
"""Modules with training's rule of which records a step is fed."""
BANNED = frozenset(
    [
        *("one", "asked", "told", "made", "found", "held", "kept", "stated", "said", "shown", "there", "own"),
        *("how", "what", "whose"),
    ]
)
PLACES_OF_EXTREMES = {"argmax", "argmin", "nanargmax", "nanargmin", "argsort", "lexsort"}
CHOICES_BY_KEY = {"max", "min", "sorted", "sort"}
EXACT_KEYS = {"len", "str", "repr", "index", "name"}
DECIDED = re.compile(r"#\s*(bound\b|exact: \S)")
"""Comment of a choice that needs no rule for ties: only a bound follows, or what is compared is exact."""
ENCODER_NAMES = re.compile(r"(^|_)(encoder|strategy)$")
ENCODER_PLACES = ("mfdl.noise", "mfdl_solvers.encoders")
PARTS_OF_NOISE = {"causal", "joint"}
"""Attributes of an algorithm's noise whose comparison with None asks for its kind."""
FLAGS_OF_KINDS = {"in_blocks", "fresh", "is_product", "is_block_causal", "secret", "num_bins", "is_of_balls_in_bins"}
"""Attributes of noise and participations that ask for the kind, where the object could act."""


@dataclasses.dataclass(frozen=True)
class Module:
    """A source file: dotted name, path below the root, text and syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, which most counts go through."""
        return [*ast.walk(self.tree)]

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def place(self, node: ast.AST) -> str:
        """File and line, for lists."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


class Project(list[Module]):
    """Its source files, by name."""

    def __init__(self, root: Path, modules: list[Module]) -> None:
        super().__init__(modules)
        self.root = root


@dataclasses.dataclass(frozen=True)
class Count:
    """One row: the name, what is counted, its limit, and a list of the places; `value` makes a number of them."""

    name: str
    description: str
    limit: int
    places: Callable[[Project], list[str]]
    value: Callable[[list[str]], int] = len


def read(root: Path) -> Project:
    """All source files below a root."""
    modules = []
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = (package, *path.relative_to(root / folder).with_suffix("").parts)
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            modules.append(Module(name, path.relative_to(root), text, ast.parse(text)))
    return Project(root, modules)


def within(name: str, packages: tuple[str, ...] | set[str]) -> bool:
    """Whether a module is one of these packages or in one of them."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


# ---- classes and the questions which of them an object is ------------------------------------------------------------


def classes(modules: list[Module]) -> dict[str, list[tuple[Module, ast.ClassDef]]]:
    """Every class at the top level of a module, by name."""
    by_name: dict[str, list[tuple[Module, ast.ClassDef]]] = collections.defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                by_name[node.name].append((module, node))
    return by_name


def names_in(node: ast.AST) -> set[str]:
    """Names and attributes in an expression."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def instance_questions(module: Module) -> Iterator[tuple[ast.Call, set[str]]]:
    """Calls of `isinstance`, with the classes that each names."""
    for node in module.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            yield node, names_in(node.args[1])


def defined_in(modules: list[Module], packages: tuple[str, ...]) -> set[str]:
    """Names of the classes that are defined in some packages."""
    return {name for name, sites in classes(modules).items() if any(within(m.name, packages) for m, _ in sites)}


def foreign_instances(modules: list[Module]) -> list[str]:
    """Calls of `isinstance` on a class of this project outside the package that defines it."""
    owners = {name: {_area(m.name) for m, _ in sites} for name, sites in classes(modules).items()}
    return [
        f"{module.place(call)} {ast.unparse(call)}"
        for module in modules
        for call, names in instance_questions(module)
        if any(_area(module.name) not in owners[name] for name in names & owners.keys())
    ]


def _area(name: str) -> str:
    return ".".join(name.split(".")[:2])


def scheme_questions(modules: list[Module]) -> list[str]:
    schemes = defined_in(modules, ("mfdl.participation",)) - {"Participation", "PatternSet", "Pattern"}
    aliases = {"Sampled", "Secret"}  # unions of schemes
    return [
        module.place(call)
        for module in modules
        if not within(module.name, {"mfdl.participation"} | FEEDING)
        for call, names in instance_questions(module)
        if names & (schemes | aliases)
    ]


def encoder_questions(modules: list[Module]) -> list[str]:
    kinds = defined_in(modules, ENCODER_PLACES[1:]) | {"Encoder", "BinEncoder", "StructuredFactorization"}
    places = []
    for module in modules:
        if within(module.name, ENCODER_PLACES):
            continue
        places += [module.place(call) for call, names in instance_questions(module) if names & kinds]
        for node in module.nodes:
            if isinstance(node, ast.Compare) and _is_none_question(node) and _last_name(node.left):
                places.append(module.place(node))
            if isinstance(node, ast.Call) and _last(node.func) in ("is_strategy", "shipped", "unwrapped"):
                places.append(module.place(node))
            if isinstance(node, ast.Call) and _last(node.func) == "isinstance" and "ndarray" in names_in(node.args[1]):
                places += [module.place(node)] if _last_name(node.args[0]) else []
    return places


def _is_none_question(node: ast.Compare) -> bool:
    return isinstance(node.ops[0], ast.Is | ast.IsNot) and ast.unparse(node.comparators[0]) == "None"


def _last(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _last_name(node: ast.AST) -> bool:
    return bool(ENCODER_NAMES.search(_last(node)))


def attribute_questions(modules: list[Module]) -> list[str]:
    """Comparisons of parts of the noise with None, and flags of noise and participations, outside their packages."""
    places = []
    for module in modules:
        if within(module.name, {"mfdl.noise", "mfdl.participation"}):
            continue
        for node in module.nodes:
            compared = node.left if isinstance(node, ast.Compare) and _is_none_question(node) else None
            of_part = isinstance(compared, ast.Attribute) and compared.attr in PARTS_OF_NOISE
            if of_part or (isinstance(node, ast.Attribute) and node.attr in FLAGS_OF_KINDS):
                places.append(f"{module.place(node)} {ast.unparse(node)}")
    return places


# ---- imports ---------------------------------------------------------------------------------------------------------


def imported(module: Module, known: set[str]) -> set[str]:
    """Modules that a module imports anywhere: at its top, in functions, for types only, by `import_module`."""
    targets = set()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                targets.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base)
        elif isinstance(node, ast.Call) and _last(node.func) == "import_module":
            targets |= {str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant)}
    return (targets & known) - {module.name}


def circles(modules: list[Module]) -> list[str]:
    known = {module.name for module in modules}
    graph = nx.DiGraph((m.name, target) for m in modules if m.name != "mfdl" for target in imported(m, known))
    parts = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    return [f"{len(part)} files: {', '.join(part)}" for part in sorted(parts, key=len, reverse=True)]


# ---- ideas that stand more than once ---------------------------------------------------------------------------------


def config_classes(modules: list[Module]) -> list[str]:
    names = [(name, site) for name, sites in classes(modules).items() for site in sites if name.endswith("Config")]
    return [f"{module.place(node)} {name}" for name, (module, node) in names if name != "Config"]


def calls_of(pattern: str) -> Callable[[list[Module]], list[str]]:
    """Files that hold a pattern."""
    return lambda modules: [str(module.path) for module in modules if re.search(pattern, module.text)]


def binary_formats(modules: list[Module]) -> list[str]:
    """Files that write what they read, in binary: not a reader of a user's matrix, nor a writer of a table."""
    return [
        str(module.path)
        for module in modules
        if "safetensors" in module.text or ("np.load(" in module.text and "np.save" in module.text)
    ]


def classes_like(pattern: str) -> Callable[[list[Module]], list[str]]:
    """Classes whose names match a pattern."""
    return lambda modules: [
        f"{module.place(node)} {name}"
        for name, sites in classes(modules).items()
        if re.fullmatch(pattern, name)
        for module, node in sites
    ]


def repeated_files(modules: list[Module]) -> list[str]:
    by_name = collections.defaultdict(list)
    for module in modules:
        if module.path.name not in SHARED_FILE_NAMES:
            by_name[module.path.name].append(str(module.path))
    return [f"{name}: {', '.join(paths)}" for name, paths in sorted(by_name.items()) if len(paths) > 1]


def repeated_classes(modules: list[Module]) -> list[str]:
    return [
        f"{name}: {', '.join(module.place(node) for module, node in sites)}"
        for name, sites in sorted(classes(modules).items())
        if len(sites) > 1
    ]


def banned_names(modules: list[Module]) -> list[str]:
    places = []
    for module in modules:
        for node in module.nodes:
            names: list[str] = []
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.append(node.name)
            elif isinstance(node, ast.arg):
                names.append(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.append(node.id)
            places += [f"{module.place(node)} {name}" for name in names if name.strip("_") in BANNED]
    return places


def genitive_names(modules: list[Module]) -> list[str]:
    """Functions and methods whose names begin with `of_` or end with `_of`."""
    return [
        f"{module.place(node)} {node.name}"
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.strip("_").startswith("of_") or node.name.endswith("_of") or node.name.strip("_") == "of"
    ]


def choices_by_rounding(modules: list[Module]) -> list[str]:
    """Choices of an index, an item or an order that may rest on the last bits of floats.

    Calls of PLACES_OF_EXTREMES and, with `key=`, of CHOICES_BY_KEY outside `mfdl_solvers.ties`, unless flags or lengths
    and names are evidently compared, or a line of the call has the comment DECIDED.
    """
    places = []
    for module in modules:
        if module.name == "mfdl_solvers.ties" or not within(module.name, ("mfdl", "mfdl_solvers")):
            continue
        lines = module.text.splitlines()
        for node in module.nodes:
            if not isinstance(node, ast.Call) or not _may_tie(node):
                continue
            span = lines[node.lineno - 1 : node.end_lineno]
            places += [] if any(map(DECIDED.search, span)) else [f"{module.place(node)} {span[0].strip()}"]
    return places


def _may_tie(call: ast.Call) -> bool:
    name = _last(call.func)
    if name in PLACES_OF_EXTREMES:
        receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        return not any(map(_is_flags, [*receiver, *call.args[:1]]))
    key = next((word.value for word in call.keywords if word.arg == "key"), None)
    if name not in CHOICES_BY_KEY or key is None:
        return False
    compared = key.body if isinstance(key, ast.Lambda) else key
    return _last(compared.func if isinstance(compared, ast.Call) else compared) not in EXACT_KEYS


def _is_flags(node: ast.AST) -> bool:
    """Whether an expression is evidently an array of flags."""
    if isinstance(node, ast.Call):
        return _last(node.func) in ("any", "all")
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert)
    joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd)
    return negated or joined or isinstance(node, ast.Compare)


# ---- sizes: places begin with a number -------------------------------------------------------------------------------


def total(places: list[str]) -> int:
    """The sum of the numbers that places start with."""
    return sum(int(place.split()[0]) for place in places)


def largest(places: list[str]) -> int:
    """The largest number that places start with; 0 without places."""
    return max((int(place.split()[0]) for place in places), default=0)


def characters(modules: list[Module]) -> list[str]:
    return [f"{len(module.text)} {module.path}" for module in modules]


def lines(modules: list[Module]) -> list[str]:
    return [f"{len(module.text.splitlines())} {module.path}" for module in modules]


def texts(pattern: str, size: Callable[[str], int]) -> Callable[[Project], list[str]]:
    """Sizes of the other files of a project whose paths match a pattern."""
    return lambda project: [
        f"{size(path.read_text(encoding='utf-8'))} {path.relative_to(project.root)}"
        for path in sorted(project.root.glob(pattern))
    ]


def words(text: str) -> int:
    """As `wc -w` counts them."""
    return len(text.split())


PAGES = texts("docs/*.md", words)
THEORY = ("_theorem.md", "shift_reduction.md")


def long_pages(project: Project) -> list[str]:
    return [page for page in PAGES(project) if int(page.split()[0]) > 1500 and not page.endswith(THEORY)]


def wide_code(project: Project) -> list[str]:
    """Lines of more than 79 columns in the code blocks of pages; `{code-cell}` is code, other directives are not."""
    places = []
    for path in sorted(project.root.glob("docs/*.md")):
        kind = None  # of the block that a line is in
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith("```"):
                kind = line[3:] if kind is None else None
            elif kind is not None and not re.match(r"\{(?!code)", kind) and len(line) > 79:
                places.append(f"{path.relative_to(project.root)}:{number} {line}")
    return places


def public_names(packages: re.Pattern[str]) -> Callable[[Project], list[str]]:
    """Names of the matching packages, from the list in `tests/test_public_names.py`."""

    def listed(project: Project) -> list[str]:
        tree = ast.parse((project.root / "tests/test_public_names.py").read_text(encoding="utf-8"))
        value = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "NAMES")
        by_package: dict[str, str] = ast.literal_eval(value)
        return [f"{p}.{name}" for p, names in by_package.items() if packages.fullmatch(p) for name in names.split()]

    return listed


ACCOUNT = """
import mfdl
W = mfdl.gossip.metropolis_hastings("ring:n=4")
algorithm = mfdl.algorithms.dp_dsgd(mfdl.Dynamics(W), mfdl.Cyclic(epochs=1, period=2))
own = mfdl.TrustModel.from_masks(seen=[[True, False, True, True]] * 2)
mfdl.account(algorithm, mfdl.Privacy(own, adjacency="zero-out", clip_norm=1.0), noise_std=1.0)
"""
LOADED = """
import sys
for name, module in list(sys.modules.items()):
    if name.split(".")[0] in ("mfdl", "mfdl_solvers") and module.__file__:
        print(len(open(module.__file__, encoding="utf-8").readlines()), name)
"""


def reach(statements: str) -> Callable[[Project], list[str]]:
    """Lines of each file of the library that statements load, in an interpreter of their own."""

    def loaded(project: Project) -> list[str]:
        path = os.pathsep.join(map(str, (project.root, project.root / "solvers")))
        done = subprocess.run(
            [sys.executable, "-c", statements + LOADED],
            cwd=project.root, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        return done.stdout.splitlines()

    return loaded


COUNTS = (
    Count("files", "source files", 298, lambda project: [str(module.path) for module in project]),
    Count("lines", "lines of source", 76_700, lines, total),
    Count("characters", "characters of source", 3_666_000, characters, total),
    Count("test-lines", "lines of tests", 53_600, texts("tests/**/*.py", lambda text: len(text.splitlines())), total),
    Count("words", "words of pages", 45_000, PAGES, total),
    Count("long-pages", "pages of more than 1,500 words that are no theory", 0, long_pages),
    Count("wide-code", "lines of code on pages of more than 79 columns", 0, wide_code),
    Count("names", "public names of the library", 250, public_names(re.compile(r"mfdl(\.\w+)?"))),
    Count("top-level", "names of `mfdl` itself", 40, public_names(re.compile("mfdl"))),
    Count("reach-trust", "lines that `import mfdl.trust` loads", 11_200, reach("import mfdl.trust"), total),
    Count("reach-account", "lines that an account of an own trust model loads", 23_000, reach(ACCOUNT), total),
    Count("circles", "circles of imports", 0, circles),
    Count("largest-circle", "files in the largest circle", 0, circles, largest),
    Count("schemes", "`isinstance` on participation schemes outside participation and feeding", 0, scheme_questions),
    Count("encoders", "questions which kind of encoder it is, outside noise and encoders", 0, encoder_questions),
    Count("questions", "questions which kind of noise or participation it is, by attribute", 37, attribute_questions),
    Count("instances", "`isinstance` on a class outside the package that defines it", 90, foreign_instances),
    Count("configs", "config classes", 10, config_classes),
    Count("toml", "files that read TOML", 1, calls_of(r"tomllib\.load")),
    Count("formats", "files that write and read a binary format", 1, binary_formats),
    Count("audits", "classes of audit results", 1, classes_like(r"\w*Audit(Result|ed)?")),
    Count("mechanisms", "classes of mechanisms", 1, classes_like(r"(?!Unsupported)\w*Mechanism")),
    Count("guarantees", "classes of guarantees", 1, classes_like(r"\w*Guarantee")),
    Count("file-names", "file names that occur twice", 0, repeated_files),
    Count("class-names", "class names that occur twice", 0, repeated_classes),
    Count("ties", "choices among floats that rounding may decide", 0, choices_by_rounding),
    Count("banned", "names of variables, arguments and functions that say nothing", 0, banned_names),
    Count("genitives", "functions whose names begin with of_ or end with _of", 20, genitive_names),
)


def measured(project: Project) -> dict[Count, int]:
    """The value of every count."""
    return {count: count.value(count.places(project)) for count in COUNTS}


def exceeded(values: dict[Count, int]) -> list[str]:
    """A line for each count above its limit."""
    return [f"{c.name}: {value:,}, limit {c.limit:,}" for c, value in values.items() if value > c.limit]


def main() -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit status 1 if a count is above its limit")
    parser.add_argument("--list", choices=[count.name for count in COUNTS], help="the places behind one count")
    parser.add_argument("--json", action="store_true", help="the counts as one JSON object")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    arguments = parser.parse_args()
    project = read(arguments.root)
    if arguments.list:
        chosen = next(count for count in COUNTS if count.name == arguments.list)
        print("\n".join(chosen.places(project)))
        return 0
    values = measured(project)
    if arguments.json:
        print(json.dumps({count.name: value for count, value in values.items()}, indent=2))
    else:
        table = Table("count", "what", "now", "limit")
        for count, value in values.items():
            table.add_row(count.name, count.description, f"{value:,}", f"{count.limit:,}")
        Console(width=120).print(table)
    above = exceeded(values) if arguments.check else []
    for line in above:
        print(line, "(--list has the places)", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
