"""Which mechanism for which trust model: test loss at one guarantee, rows tuned alike, compared on the same seeds.

The protocol, fixed before any run of the test:

- Data: features clipped at 5 after standardising, a public constant (housing: with constants of the train records,
  declared public; the records of a9a, MNIST and the generated ones are bounded as they are).
- Scenes, TASK/GRAPH: housing with a linear model (Huber's loss) or a network, a9a, mnist, logistic data of known
  spectrum; ego-Facebook (148 nodes), Erdos-Renyi (100 nodes, p = 0.1), a torus of 100 nodes; records split uniformly
  or, with "/dirichlet", by classes (alpha = 1). Metropolis-Hastings weights, zero-out adjacency, delta = 1e-5,
  epsilon = 0.726 (mu = 0.2), clipping at 1 where a row names no other norm. A scene counts if noise costs DP-D-SGD at
  least 20 % over no noise, each at its best rate, on the seeds of tuning; one that does not is tried once more at
  epsilon = 0.331 (mu = 0.1).
- Rows are designs: without noise, DP-D-SGD, MAFALDA as published and banded noise in 10 epochs of 16 public batches;
  with balls-in-bins DP-D-SGD and the encoders for it; full batches in 160 or 640 steps with 1, 5 or 20 gossip rounds a
  step, some with the public preconditioner of the task. CorN, DECOR and noise over time and nodes in the ranking of
  the eavesdropper. The published model is the average of the last 30 % of the models, of full batches of the last half;
  some rows also have their last model, tuned apart. Costs stand beside every row: gradient evaluations a record, and
  exchanges with all neighbours.
- Tuning: seven rates from 0.01 to 1, by successive halving on mean ranks, 7 x 2 to 3 x 5 seeds; where the best is at an
  end of the grid, the next rate beyond it is tried, up to four times. Nothing else is chosen. Tuning is not private.
- Test: 20 seeds that no choice has seen, once, paired; the records of the test are those of tuning. Log ratio to
  MAFALDA's last model, and share of the way from there to no noise, in the design of the reference (the better of its
  two models) and in the best design. Intervals: bootstrap over scenes, then seeds. Wilcoxon's test for each row and
  scene, corrected by Holm over all of them.

Every trust model beside its limit (`--rows trust`), fixed before its runs:

- Scenes: logistic and housing with a linear model on the torus at epsilon = 0.726 and 0.331; on a torus of 25 nodes at
  0.331 for coalitions of 1, 2 and 3 (of 100 nodes there are 161,700 coalitions of three, more than the library
  accounts one by one). Added after the torus had been seen: Erdos-Renyi at 0.726. a9a at 0.331 comes last.
- Test on seeds 800 to 819. Tuning: five rates (four with public batches, near those of one seed of tuning on logistic
  data) on one seed, the best two on three, the next rate at an end of the grid as above. One model of each row.
- Rows: public batches as published, full batches with 1, 5 and 20 rounds, balls-in-bins; independent noise (LDP), CorN
  (eavesdropper), DECOR with a seed for each edge against coalitions of q, CDP (central), noise on every message that
  is optimal for PNDP (4 full batches, 25 nodes). Rows against coalitions have the rate of CorN's row of the same
  design, and noise for PNDP that of independent noise: each of their rates is another accounting of every coalition.
- Beside each row: its share of the gap as above, and the share of what can be closed: to the best row without noise
  plus the limit of its trust model (`_limits.py`). The picture has the best row of each trust model, by its test loss.

Every run is a cell of a sweep in OUT/SCENE: the same command resumes where it was stopped or killed. OUT/tables.md,
OUT/results.json and the pictures hold the results so far.

    python experiments/which_mechanism.py [--out DIR] [--scenes logistic/torus,a9a/ego/dirichlet,...] [--rows A,B,...]
        [--jobs 2] [--report] [--quick]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from _comparison_picture import draw, draw_limits
from _comparison_tables import answers, limit_cells, write
from _protocol import Plan, compared
from _scenes import QUICK, ROWS, TRUST_ROWS, scene

from mfdl.pictures.style import write_figure
from mfdl.runs import Engine, Tuning

SCENES = (
    *("housing-linear/torus", "logistic/er", "a9a/ego", "housing-linear/ego", "logistic/torus", "a9a/er"),
    *("housing-linear/er", "logistic/ego", "a9a/torus", "housing-mlp/torus", "housing-mlp/er", "housing-mlp/ego"),
)
TRUST_PLAN = Plan(
    tuning=Tuning(seeds=3, first_seed=10_000, first_round=1, share=2 / 5, at_least=2, by="rank"),
    seeds=tuple(range(800, 820)),
)
GROUPS = {"ldp": [row for row in ROWS.values() if "ldp" in row.rankings], "trust": list(TRUST_ROWS)}
TRUST_SCENES = (
    *("logistic/torus/epsilon=0.726", "housing-linear/torus/epsilon=0.726"),
    *("logistic/torus25/epsilon=0.331", "housing-linear/torus25/epsilon=0.331"),
    *("logistic/torus/epsilon=0.331", "housing-linear/torus/epsilon=0.331"),
    *("logistic/er/epsilon=0.726", "housing-linear/er/epsilon=0.726", "a9a/torus/epsilon=0.331"),
)
QUICK_PLAN = Plan(
    rates=(0.1, 0.3), tuning=Tuning(seeds=2, first_seed=10_000, at_least=1, by="rank"), seeds=(100, 101), counts_from=0
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/which_mechanism"))
    parser.add_argument("--scenes", help="TASK/GRAPH[/dirichlet][/epsilon=E], in this order; default: those above")
    parser.add_argument("--rows", default="ldp", help="ldp, trust (every trust model), or labels")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", help="torch device, e.g. cpu or cuda; default: CUDA when there is one")
    parser.add_argument("--first-seed", type=int, help="of the 20 seeds of the test")
    parser.add_argument("--report", action="store_true", help="write tables and picture of what is there, run nothing")
    parser.add_argument("--quick", action="store_true", help="a ring of four nodes, a check that everything works")
    options = parser.parse_args(arguments)
    default = TRUST_SCENES if options.rows == "trust" else SCENES
    names = options.scenes.split(",") if options.scenes else default
    labels = options.rows.split(",")
    unknown = [label for label in labels if label not in ROWS and options.rows not in GROUPS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(ROWS)}.")
    try:
        scenes = [QUICK] if options.quick else [scene(name) for name in names]
    except ValueError as error:
        parser.error(str(error))
    rows = GROUPS.get(options.rows) or [ROWS[label] for label in labels]
    plan = QUICK_PLAN if options.quick else TRUST_PLAN if options.rows == "trust" else Plan()
    if options.first_seed is not None:
        plan = dataclasses.replace(plan, seeds=tuple(range(options.first_seed, options.first_seed + len(plan.seeds))))
    plan = dataclasses.replace(plan, device=options.device)
    engine = Engine(jobs=options.jobs)
    for place in scenes if not options.report else ():
        compared(place, rows, options.out, engine, plan, lambda text: print(text, flush=True))
        write(options.out)
    print(write(options.out))
    if any(answer["counts"] and answer["rows"] for answer in answers(options.out)):
        write_figure(options.out, "comparison", draw(answers(options.out)))
    beside = [answer for answer in answers(options.out) if answer["counts"] and limit_cells([answer])[1]]
    if beside:
        write_figure(options.out, "limits", draw_limits(beside))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("MFDL_PROGRESS", "0")  # a line for each row is enough
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
