r"""The table of a comparison as LaTeX: mechanisms in rows, budgets in columns, with the rules of booktabs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

SPECIAL = re.compile(r"([&%$#_{}])")


def booktabs(
    rows: Sequence[Mapping[str, Any]], leaders: Collection[tuple[Any, Any, Any]] = (), *, by_epsilon: bool = False
) -> str:
    r"""Test loss ± standard deviation over seeds, of rows as `Comparison.table` gives them.

    >>> row = {"mechanism": "mafalda", "budget": 1.0, "epsilon": 4.9, "delta": 1e-6, "lr": 0.5, "seeds": 3,
    ...        "final_test_loss_mean": 1.25, "final_test_loss_std": 0.031}
    >>> print(booktabs([row], {("mafalda", 1.0, 0.5)}))
    \begin{tabular}{lr}
    \toprule
    test loss & $\mu = 1$ \\
    \midrule
    mafalda & $\mathbf{1.250 \pm 0.031}$ \\
    \bottomrule
    \end{tabular}
    <BLANKLINE>

    Args: leaders: mechanism, budget and learning rate of the entries that are bold; by_epsilon: budgets are epsilons.

    A mechanism without noise, which has no budget, has its one value in each column.
    """
    private = [row for row in rows if row["mechanism"] != "none"]
    columns = list(dict.fromkeys((row["budget"], row["lr"]) for row in private or rows))
    rates = {rate for _, rate in columns}
    lines = [r"\begin{tabular}{l" + "r" * len(columns) + "}", r"\toprule"]
    lines.append(
        " & ".join(["test loss", *(_head(column, by_epsilon, len(rates) > 1) if private else "" for column in columns)])
        + r" \\"
    )
    lines.append(r"\midrule")
    for name in dict.fromkeys(row["mechanism"] for row in rows):
        of_name = [row for row in rows if row["mechanism"] == name]
        by_column = {(row["budget"], row["lr"]): row for row in of_name}
        entries = []
        for column in columns:
            row = by_column.get(column) or (None if of_name[0] in private else _at_rate(of_name, column[1]))
            entries.append(_entry(row, bold=(name, *column) in leaders))
        lines.append(" & ".join([SPECIAL.sub(r"\\\1", name), *entries]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _head(column: tuple[Any, Any], by_epsilon: bool, with_rate: bool) -> str:
    budget, rate = column
    words = rf"$\{'varepsilon' if by_epsilon else 'mu'} = {budget:.4g}$"
    return words + (rf", $\eta = {rate:g}$" if with_rate else "")


def _at_rate(rows: Sequence[Mapping[str, Any]], rate: Any) -> Mapping[str, Any] | None:
    return next((row for row in rows if row["lr"] == rate), None)


def _entry(row: Mapping[str, Any] | None, *, bold: bool) -> str:
    if row is None:
        return ""
    mean = row["final_test_loss_mean"]
    if mean is None:
        return "diverged"
    text = f"{mean:.3f}" + (rf" \pm {row['final_test_loss_std']:.3f}" if row["seeds"] > 1 else "")
    return rf"$\mathbf{{{text}}}$" if bold else f"${text}$"
