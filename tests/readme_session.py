"""The README's Python as a session on files of a user, short enough for a test."""

from pathlib import Path

from page_session import blocks

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
FULL = "epochs=20, period=16, learning_rate=0.5, seeds=5"
QUICK = "epochs=2, period=4, learning_rate=0.5, seeds=1"


def quick_blocks(folder):
    """(kind, code) of its blocks; writes the files that they read into the folder."""
    (folder / "sites.edges").write_text("Paris Lyon\nLyon Nice\nNice Paris\nNice Lille\n", encoding="utf-8")
    rows = [f"{20 + i % 50},{1000 + 37 * i % 900},{2 + i % 7 / 4}" for i in range(200)]
    (folder / "own.csv").write_text("\n".join(["age,income,price", *rows]), encoding="utf-8")
    assert FULL in README
    return [(kind, code.replace(FULL, QUICK)) for kind, code in blocks(README)]
