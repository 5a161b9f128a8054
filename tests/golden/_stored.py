"""Golden values: what the library answers, beside what it answered when the values were stored.

`compare("hashes", values)` holds `values` against `hashes.json` in this folder. Texts, keys and integers must be equal,
floats within the tolerance of the test. With MFDL_GOLDEN=write the file is rewritten; numbers within the tolerance stay
as they are, so that a diff shows what has changed and nothing else.
"""

import json
import math
import os
from pathlib import Path

FOLDER = Path(__file__).parent
WRITE = "MFDL_GOLDEN"
LISTED = 12  # differences listed in a message
MISSING = "(no such entry)"
WIDTH = 116


def compare(name, values, *, relative=0.0, absolute=0.0):
    """Fails where an entry differs from `name`.json, and names the entry with both values."""
    path = FOLDER / f"{name}.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    current = json.loads(json.dumps(finite(values), allow_nan=False))
    differences = []
    merged = _merged(stored, current, (), differences, relative, absolute)
    if os.environ.get(WRITE) == "write":
        path.write_text(written(merged) + "\n", encoding="utf-8")
        return
    assert not differences, _message(path.name, differences)


def finite(value):
    """JSON values; infinity is the text "inf"."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return "inf" if isinstance(value, float) and value == math.inf else value


def written(value, indent=""):
    """JSON with sorted keys, one entry a line; a list of numbers or texts on one line where it fits."""
    inner = indent + " "
    on_one_line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value:
        return on_one_line
    if isinstance(value, list):
        if len(indent) + len(on_one_line) <= WIDTH and not any(isinstance(item, dict) for item in value):
            return on_one_line
        if all(isinstance(item, int | float) for item in value):
            return on_one_line  # a row of numbers stays one line
        return "[\n" + ",\n".join(inner + written(item, inner) for item in value) + f"\n{indent}]"
    items = (f"{inner}{json.dumps(key, ensure_ascii=False)}: {written(value[key], inner)}" for key in sorted(value))
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def _merged(stored, current, entry, differences, relative, absolute):
    """`current`, with stored numbers where they agree within the tolerance; appends (entry, stored, current)."""
    settings = (differences, relative, absolute)
    if isinstance(stored, dict) and isinstance(current, dict):
        for key in sorted(stored.keys() - current.keys()):
            differences.append(((*entry, key), stored[key], MISSING))
        for key in sorted(current.keys() - stored.keys()):
            differences.append(((*entry, key), MISSING, current[key]))
        both = {key: _merged(stored[key], current[key], (*entry, key), *settings) for key in current if key in stored}
        return current | both
    if isinstance(stored, list) and isinstance(current, list) and len(stored) == len(current):
        pairs = enumerate(zip(stored, current, strict=True))
        return [_merged(before, now, (*entry, i), *settings) for i, (before, now) in pairs]
    if _agree(stored, current, relative, absolute):
        return stored
    differences.append((entry, stored, current))
    return current


def _agree(stored, current, relative, absolute):
    if isinstance(stored, float) and isinstance(current, float):
        return math.isclose(stored, current, rel_tol=relative, abs_tol=absolute)
    return type(stored) is type(current) and stored == current


def _message(file, differences):
    lines = [f"{len(differences)} golden values of tests/golden/{file} have changed:"]
    for entry, stored, current in differences[:LISTED]:
        lines += [f"  {' / '.join(map(str, entry))}", f"    stored {_short(stored)}", f"    now    {_short(current)}"]
    if len(differences) > LISTED:
        lines.append(f"  ... and {len(differences) - LISTED} more")
    lines.append(f"If this is meant: {WRITE}=write python -m pytest -n 0 tests/golden; a commit of its own says why.")
    return "\n".join(lines)


def _short(value, length=400):
    text = value if value is MISSING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= length else f"{text[:length]} ..."
