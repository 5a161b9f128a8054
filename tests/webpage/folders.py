"""Small folders of runs, and a page as the tests read it."""

import dataclasses
import html.parser

import numpy as np

from mfdl import files
from mfdl.runs import Cell, Store, run_cells
from mfdl.runs.experiment import Experiment
from mfdl.runs.store import RunSteps

SMALL = Experiment(graph="path:n=4", epochs=2, period=3, seeds=1, task="digits", learning_rate=0.5)


def cells():
    """Two seeds of three mechanisms, one of them for another trust model, and without noise: two budgets, two rates."""
    configs = []
    for lr, mu, seed in ((0.5, 0.5, 0), (0.5, 0.5, 1), (0.5, 2.0, 0), (0.5, 2.0, 1), (0.1, 2.0, 0), (0.1, 2.0, 1)):
        options = {"learning_rate": lr, "first_seed": seed}
        configs.append(dataclasses.replace(SMALL, mechanisms=("none",), **options))
        configs += [dataclasses.replace(SMALL, mechanisms=(name,), mu=mu, **options) for name in ("dp-dsgd", "mafalda")]
        configs.append(dataclasses.replace(SMALL, mechanisms=("decor",), trust="eavesdropper", mu=mu, **options))
    return [*map(Cell, configs), Cell(dataclasses.replace(SMALL, mechanisms=("corn",)))]  # refused under ldp


def sweep(folder):
    run_cells(cells(), folder, progress=False)
    return folder


RECORD = {
    "mechanism": "file:lost.npz", "label": "lost", "trust": "ldp", "attacker": "anyone", "mu": 1.0, "epsilon": 4.887,
    "delta": 1e-6, "adjacency": "zero-out", "unit": "record", "clip_norm": 1.0, "graph": "florentine", "task": "digits",
    "lr": 0.5, "error_weights": None, "graph_hash": "g", "gossip": "metropolis-hastings", "gossip_hash": "h",
    "nodes": 15, "task_hash": "t", "steps": 6, "guarantee": "A sentence.", "noise_std": 1.0,
    "injected_noise_std": 1.0, "untrained_loss": 2.3, "chance_loss": 2.3, "objective": 1.0, "final_test_loss": 1.0,
    "final_accuracy": None, "diverged": False, "seed": 0,
}  # fmt: skip


def made_up(folder, records, failures=(), config=None, **given):
    """A folder of records that differ from `RECORD`, each with two evaluated steps."""
    store, names = Store(folder), []
    for i, changed in enumerate([*records, *failures]):
        name = f"{i:016x}"
        names.append(name)
        if i >= len(records):
            store.add_failure(name, {"cell": name, **changed})
            continue
        record = {**RECORD, "cell": name, **changed}
        record["mechanism"] = f"file:{record['label']}"
        options = {"mechanisms": [record["mechanism"]], **{name: record[name] for name in ("mu", "lr", "graph")}}
        record["config"] = {"seeds": 1, "first_seed": record["seed"], "trust": record["trust"], **options}
        last = np.nan if record["final_test_loss"] is None else record["final_test_loss"]
        losses = np.array([[2.0, 2.2], [last, last]])
        of_run = {"mechanism": record["mechanism"], "seed": record["seed"]}
        store.add(name, record, RunSteps(of_run, np.array([3, 6]), ("0", "1"), {"loss": losses}))
    content = {"cells": names, "config": config or {}, "versions": {"mfdl": "0.1.0"}, **given}
    files.atomic_write_json(folder / "sweep.json", content)
    return folder


VOID = {"meta", "input", "br", "link", "img"}


class Page(html.parser.HTMLParser):
    """What a page says and loads.

    Attributes: elements: tag, attributes, text in it, label of the region that it is in; stack: those not closed yet.
    """

    def __init__(self, path):
        super().__init__()
        self.elements, self.stack = [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag, attrs):
        regions = [e[1]["aria-label"] for e in self.stack if e[1].get("role") == "region"]
        element = [tag, dict(attrs), "", regions[-1] if regions else None]
        self.elements.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), "", None])

    def handle_endtag(self, tag):
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop()[0] == tag

    def handle_data(self, data):
        for element in self.stack:
            element[2] += data

    def all(self, tag, **attributes):
        return [e for e in self.elements if e[0] == tag and attributes.items() <= e[1].items()]

    def rows(self):
        """The table of mechanisms: per row the attributes of the row, and its cells by class with their values."""
        collected, row = [], None
        cell = None
        for tag, attributes, text, _ in self.elements:
            if tag == "tr":
                row = {"mechanism": attributes.get("data-mechanism"), "trust": attributes.get("data-trust")}
                if row["mechanism"] is not None:
                    collected.append(row)
            elif tag == "td":
                cell = attributes.get("class")
                row.setdefault(cell, [])
                row[f"{cell} text"] = text
            elif tag == "data" and cell is not None:
                row[cell].append(float(attributes["value"]))
        return collected
