"""`mfdl compare`: mechanisms side by side, at one guarantee, on one graph and task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidInput
from . import options


def compare(
    context: typer.Context,
    config: options.Config = None,
    mechanisms: Annotated[
        str,
        typer.Option(
            "--mechanisms",
            metavar="A,B,...",
            help="Names of `mfdl mechanisms`, and file:FILE.npz.",
        ),
    ] = "none,dp-dsgd,d-mf,mafalda",
    graph: options.Graph = "florentine",
    largest_component: options.LargestComponent = False,
    gossip: options.Gossip = "metropolis-hastings",
    task: Annotated[
        str, typer.Option("--task", metavar="NAME", help="digits, housing, rotated-quadratics, a9a, mnist, ...")
    ] = "digits",
    epochs: options.Epochs = 20,
    period: options.Period = 16,
    mu: Annotated[
        float | None, typer.Option("--mu", help="Privacy target: mu-Gaussian-DP; default 2 without --epsilon.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Privacy target instead of --mu.")] = None,
    delta: options.Delta = 1e-6,
    adjacency: options.Adjacency = "replace-one",
    clip_norm: Annotated[float, typer.Option("--clip-norm", help="Clipping norm of one record's gradient.")] = 1.0,
    unit: Annotated[
        str, typer.Option("--unit", help="record; or user: a node's mean gradient is clipped, all its data protected.")
    ] = "record",
    trust: Annotated[
        str, typer.Option("--trust", metavar="NAME", help="Trust model of the ranking: a name of `mfdl trust list`.")
    ] = "ldp",
    attackers: Annotated[
        str | None, typer.Option("--attackers", metavar="A,B", help="pndp: who attacks; default any one node.")
    ] = None,
    colluders: options.Colluders = None,
    coalition_size: options.CoalitionSize = None,
    release: Annotated[
        str | None, typer.Option("--release", help="Where messages are hidden: none, average or all final models.")
    ] = None,
    across_trust_models: Annotated[
        bool,
        typer.Option("--across-trust-models", help="Let in mechanisms meant for another trust model, each labelled."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME.KEY=VALUE", help="A parameter of a mechanism, e.g. muffliato.gossip_rounds=4."
        ),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", help="Who holds which record: uniform, or dirichlet:alpha=10.")
    ] = None,
    error_weights: Annotated[
        list[str] | None,
        typer.Option(
            "--error-weights",
            metavar="STEPS[/TARGET]",
            help="Which models count for mechanisms that optimise: all, last:M, last:M:FLOOR, exponential:H, or any of "
            "these with /average; may be repeated, then each mechanism is there once for each.",
        ),
    ] = None,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate.")] = 0.5,
    momentum: options.Momentum = 0.0,
    weight_decay: options.WeightDecay = 0.0,
    seeds: Annotated[int, typer.Option("--seeds", help="Number of seeds.")] = 3,
    first_seed: Annotated[int, typer.Option("--first-seed", help="The first seed.")] = 0,
    eval_every: Annotated[
        int | None, typer.Option("--eval-every", help="Steps between evaluations; default one epoch.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the results.")] = Path("results/compare"),
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Keep the finished runs that the folder holds.")
    ] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a comparison with other options in the folder.")
    ] = False,
    device: options.Device = None,
    jobs: Annotated[int, typer.Option("--jobs", help="Worker processes.")] = 1,
    data_home: options.DataHome = None,
    as_json: options.Json = False,
) -> None:
    """Train with each mechanism at the same privacy guarantee; write results.json, steps.parquet and a picture.

    Ctrl-C keeps what is finished; the same command then goes on from there.
    """
    mu, epsilon = _one_target(context, mu, epsilon)
    options.require_steps(epochs * period)
    from ..reporting.comparison_config import ComparisonConfig

    plan = ComparisonConfig(
        graph=graph,
        largest_component=largest_component,
        gossip=gossip,
        task=task,
        epochs=epochs,
        period=period,
        mu=mu,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        clip_norm=clip_norm,
        learning_rate=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        unit=unit,
        trust=trust,
        attackers=_nodes(attackers),
        colluders=_nodes(colluders),
        coalition_size=coalition_size,
        release=release,
        across_trust_models=across_trust_models,
        partition=partition,
        settings=tuple(settings or ()),
        error_weights=tuple(error_weights or ()),
        mechanisms=tuple(name.strip() for name in mechanisms.split(",") if name.strip()),
        seeds=seeds,
        first_seed=first_seed,
        eval_every=eval_every,
        device=device,
        jobs=jobs,
        data_home=None if data_home is None else str(data_home),
    )
    from ..reporting.compare import PNG, run_comparison  # brings torch: after all that can be refused without it

    bar = options.progress_bar()
    row = bar.add_task("", total=plan.total_steps)

    def progress(steps: int, doing: str) -> None:
        bar.start()  # not before the first report: refusals come earlier, and stay one line
        bar.update(row, advance=steps, description=doing)

    try:
        result = run_comparison(plan, out, resume=resume, overwrite=overwrite, progress=progress)
    except KeyboardInterrupt:
        bar.console.print(f"Finished runs are kept in {out}; the same command goes on from there.", markup=False)
        raise
    finally:
        if bar.live.is_started:
            bar.stop()
    if as_json:
        typer.echo(json.dumps(result, allow_nan=False))
    else:
        _show(result, out / PNG)


def _nodes(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(label.strip() for label in text.split(",") if label.strip())


def _one_target(context: typer.Context, mu: float | None, epsilon: float | None) -> tuple[float | None, float | None]:
    """A typed target replaces the other one of a --config file; two typed ones are a mistake."""
    if mu is not None and epsilon is not None:
        typed_mu, typed_epsilon = (options.from_command_line(context, name) for name in ("mu", "epsilon"))
        if typed_mu == typed_epsilon:
            raise InvalidInput("give one privacy target: --mu, or --epsilon with --delta, not both.")
        return (mu, None) if typed_mu else (None, epsilon)
    return mu, epsilon


def _show(result: dict[str, Any], picture: Path) -> None:
    from rich.markup import escape
    from rich.table import Table

    count = len(result["seeds"])
    title = f"{result['task']} on {result['graph']}: {result['nodes']} nodes, {result['steps']} steps"
    table = Table(title=escape(title))
    table.add_column("mechanism")
    for column in (
        f"final test loss ({count} seed{'s' * (count > 1)})",
        "accuracy",
        "injected\nnoise std",
        "objective",
    ):
        table.add_column(column, justify="right")
    for one in result["mechanisms"]:
        spread = f" ± {one['final_loss_std']:.3f}" if count > 1 and one["final_loss_std"] is not None else ""
        loss = one["final_loss_mean"]
        accuracy = one["final_accuracy_mean"]
        table.add_row(
            escape(one["label"]),
            f"diverged ({len(one['diverged'])} of {count})" if loss is None else f"{loss:.3f}{spread}",
            "" if accuracy is None else f"{accuracy:.1%}",
            f"{one['injected_noise_std']:.3g}",
            f"{one['objective']:,.0f}" if isinstance(one["objective"], float) else str(one["objective"]),
        )
    console = options.answers()
    console.print(table)
    console.print(result["guarantee"], highlight=False, markup=False)
    if any(one["mechanism"] == "none" for one in result["mechanisms"]):
        console.print("none trains without noise: it has no guarantee.", highlight=False)
    console.print("Noise is drawn from the seeds: whoever knows them can subtract it.", highlight=False)
    console.print(f"Picture: {picture}", highlight=False, markup=False, soft_wrap=True)
