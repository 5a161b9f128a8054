"""`mfdl trust list` and `mfdl trust explain`: trust models by name, and the options that give their parameters."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import options

app = typer.Typer(
    help="Trust models: what an attacker sees and knows.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command("list")
def list_models(as_json: options.Json = False) -> None:
    """List the trust models: messages seen, gradients known, noise known."""
    from ..trust import MODELS

    rows = [_words(name) for name in MODELS]
    if as_json:
        options.as_one_json_value(rows)
        return
    table = options.table(("name", "messages seen", "gradients known", "noise known", "options"), title="trust models")
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(
            *(row[key] for key in ("name", "seen", "gradients_known", "noise_known")), "\n".join(row["options"])
        )
    options.answers().print(table, markup=False)


@app.command()
def explain(
    name: Annotated[str, typer.Argument(help="A name of `mfdl trust list`.")], as_json: options.Json = False
) -> None:
    """Explain one trust model."""
    words = _words(name)
    if as_json:
        options.as_one_json_value(words)
        return
    lines = {
        "attacker": words["attacker"],
        "messages seen": words["seen"],
        "gradients known": words["gradients_known"],
        "noise known": words["noise_known"],
        "released models": words["release"],
        "options": " or ".join(words["options"]) or "none needed",
    }
    options.explain(f"{name}:", lines)


def _words(name: str) -> dict[str, Any]:
    """One trust model, JSON-ready."""
    from ..reporting.question import options_of
    from ..trust import MODELS

    entry = MODELS.entry(name)
    return {
        "name": name,
        "attacker": entry.observer,
        **{key: getattr(entry, key) for key in ("seen", "gradients_known", "noise_known")},
        "options": [option for parameter in entry.signature.values() for option in options_of(parameter)],
        "release": entry.release,
    }
