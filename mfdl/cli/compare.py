"""`mfdl compare`: mechanisms side by side, at one guarantee, on one graph and task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..reporting.comparison_config import ComparisonConfig
from . import options
from .command import Answer, command


@command(ComparisonConfig, "Folder of the results.", default=Path("results/compare"))
def compare(
    config: ComparisonConfig,
    out: Path,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Keep the finished runs that the folder holds.")
    ] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a comparison with other options in the folder.")
    ] = False,
) -> Answer:
    """Train with each mechanism at the same privacy guarantee; write results.json, steps.parquet and a picture.

    Ctrl-C keeps what is finished; the same command then goes on from there.
    """
    bar = options.progress_bar()
    row = bar.add_task("", total=config.total_steps)

    def progress(steps: int, doing: str) -> None:
        bar.start()  # not before the first report: refusals come earlier, and stay one line
        bar.update(row, advance=steps, description=doing)

    try:
        result = config.run(out, resume=resume, overwrite=overwrite, progress=progress)
    except KeyboardInterrupt:
        bar.console.print(f"Finished runs are kept in {out}; the same command goes on from there.", markup=False)
        raise
    finally:
        if bar.live.is_started:
            bar.stop()
    return result, lambda: _show(result, out / "compare.png"), 0


def _show(result: dict[str, Any], picture: Path) -> None:
    count = len(result["seeds"])
    title = f"{result['task']} on {result['graph']}: {result['nodes']} nodes, {result['steps']} steps"
    numbers = (f"final test loss ({count} seed{'s' * (count > 1)})", "accuracy", "injected\nnoise std", "objective")
    table = options.table(("mechanism", *numbers), title=title, right=numbers)
    for row in result["mechanisms"]:
        spread = f" ± {row['final_loss_std']:.3f}" if count > 1 and row["final_loss_std"] is not None else ""
        loss, accuracy, objective = row["final_loss_mean"], row["final_accuracy_mean"], row["objective"]
        table.add_row(
            row["label"],
            f"diverged ({len(row['diverged'])} of {count})" if loss is None else f"{loss:.3f}{spread}",
            "" if accuracy is None else f"{accuracy:.1%}",
            f"{row['injected_noise_std']:.3g}",
            f"{objective:,.0f}" if isinstance(objective, float) else str(objective),
        )
    without = any(row["mechanism"] == "none" for row in result["mechanisms"])
    options.say([table, result["guarantee"], *["none trains without noise: it has no guarantee."] * without])
    options.say(["Noise is drawn from the seeds: whoever knows them can subtract it."])
    options.answers().print(f"Picture: {picture}", highlight=False, markup=False, soft_wrap=True)
