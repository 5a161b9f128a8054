"""`mfdl compare`: mechanisms side by side, at one guarantee, on one graph and task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..metrics import WORDS, is_accuracy, result_key
from ..runs.comparison_config import ComparisonConfig
from ..runs.output import largest_epsilon, mu_rounded_up, rounded_up
from . import terminal
from .command import Answer, command


@command(ComparisonConfig, "Folder of the results.", default=Path("results/compare"))
def compare(
    config: ComparisonConfig,
    out: Path,
    several: dict[str, list[float]],
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Reuse the finished runs in the folder.")] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a comparison with other options in the folder.")
    ] = False,
) -> Answer:
    """Train with each mechanism at the same privacy guarantee; write results.json, steps.mfdl and a picture.

    Ctrl-C keeps the finished runs; the same command resumes.
    """
    try:
        from ..runs.comparing import run_comparison

        result = run_comparison(config, out, several=several, resume=resume, overwrite=overwrite)
    except KeyboardInterrupt:
        message = f"Finished runs are stored in {out}; run the same command to resume."
        terminal.messages().print(message, markup=False)
        raise
    return result, lambda: _show_several(result, out) if several else _show(result, out / "compare.png"), 0


def _show(result: dict[str, Any], picture: Path) -> None:
    count = len(result["seeds"])
    title = f"{result['task']} on {result['graph']}: {result['nodes']} nodes, {result['steps']} steps"
    title += f"; {of}" if (of := _target(result)) else ""
    measured = result["config"].get("metrics", [])
    numbers = [f"final test loss ({count} seed{'s' * (count > 1)})", "accuracy", "injected\nnoise std"]
    numbers += ["objective"] * (with_objective := any(row["objective"] is not None for row in result["mechanisms"]))
    numbers += [WORDS[name].replace(" of the ", "\nof the ") for name in measured]
    table = terminal.table(("mechanism", *numbers), title=title, right=numbers)
    for row in result["mechanisms"]:
        objective, error = row["objective"], f" ± {row['objective_error']:,.0f}" if "objective_error" in row else ""
        loss = terminal.plus_minus(row["final_test_loss_mean"], row["final_test_loss_std"], count, ".3f")
        table.add_row(
            row["label"],
            f"diverged ({len(row['diverged'])} of {count})" if row["final_test_loss_mean"] is None else loss,
            terminal.plus_minus(row["final_accuracy_mean"], row["final_accuracy_std"], count, ".1%"),
            f"{row['injected_noise_std']:.3g}",
            *[f"{objective:,.0f}{error}" if isinstance(objective, float) else str(objective)] * with_objective,
            *(
                terminal.plus_minus(
                    row[f"{result_key('final', name)}_mean"],
                    row[f"{result_key('final', name)}_std"],
                    count,
                    ".1%" if is_accuracy(name) else ".3g",
                )
                for name in measured
            ),
        )
    for name, mean in (("untrained", "_mean"), ("chance", "")):
        loss, accuracy = result[f"{name}_loss{mean}"], result[f"{name}_accuracy{mean}"]
        if loss is not None:
            table.add_row(f"({name})", f"{loss:.3f}", "" if accuracy is None else f"{accuracy:.1%}")
    spread = ["±: standard deviation over seeds."] * (count > 1)
    terminal.say([table, *spread, *_footnotes(result)[: 1 + with_objective]])
    terminal.say([f"{result['finding']}."] * bool(result["finding"]) + result["advice"])
    without = any(row["mechanism"] == "none" for row in result["mechanisms"])
    terminal.say([result["guarantee"], *["none trains without noise: it has no guarantee."] * without])
    terminal.say(["The noise is generated from the seeds: anyone who knows them can subtract it."])
    terminal.answers().print(f"Picture: {picture}", highlight=False, markup=False, soft_wrap=True)


def _target(result: dict[str, Any]) -> str:
    """mu, where there is one, and epsilon; empty without either, as where only "none" is trained."""
    epsilon, mu = largest_epsilon(result), result["mu"]
    words = [] if mu is None else [f"mu = {mu_rounded_up(mu)}"]
    if epsilon is not None:
        words.append(f"epsilon = {rounded_up(epsilon)} at delta = {result['delta']:g}")
    return ", ".join([*words, *["balls-in-bins"] * (mu is None)])


def _show_several(result: dict[str, Any], out: Path) -> None:
    same = {"seeds": result["seeds"], "graph": result["graph"], "task": result["task"]}
    rows = [{**row, **same, "diverged": len(row["diverged"])} for row in result["mechanisms"]]
    terminal.say([terminal.grid(rows), *_footnotes(result)[:1], *result["advice"], result["guarantee"]], out)


def _footnotes(result: dict[str, Any]) -> list[str]:
    from ..training.run import final_steps  # torch only where something is trained

    num_steps, released = result["steps"], result["config"].get("release_model")
    means = f" and over the evaluations of the last {final_steps(num_steps)} of {num_steps} steps"
    estimated = any("objective_error" in row for row in result["mechanisms"])
    return [
        f"Final test loss and accuracy: mean over the nodes{means if released is None else f' of {released}'}.",
        (
            "objective: noise left in the models at this epsilon and delta, per unit clipping norm and learning rate"
            if result["mu"] is None
            else "objective: noise left in the models, per unit mu and record shift; it goes with (record shift / mu)^2"
        )
        + ("; estimated, with a 95 % interval." if estimated else "."),
    ]
