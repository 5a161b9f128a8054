"""Public batches and balls-in-bins in one sweep: the same epsilon, mu null, one page of both."""

import json

import pytest
from refusals import refuses

from mfdl.commands import main
from mfdl.privacy.gaussian import epsilon_from_mu
from mfdl.runs import Store, sweep
from mfdl.runs.sweep_config import SweepConfig
from mfdl.training import covered

ASKED = {
    "graph": "ring:n=3", "mechanisms": ("none", "dp-dsgd"), "participation": ["cyclic", "balls-in-bins"], "mu": [0.8],
    "delta": 1e-5, "epochs": 2, "period": 2, "seeds": 1, "adjacency": "zero-out",
}  # fmt: skip
EPSILON = epsilon_from_mu(0.8, 1e-5)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Of a task whose records were looked at before training."""
    folder = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patch:
        target_words = {True: "the mean", False: ""}
        patch.setattr(covered, "left_out", lambda mechanism, task: target_words[mechanism.sampling is not None])
        return folder, sweep(out=folder, progress=False, **ASKED)


def test_both_participations_are_held_to_one_epsilon_and_the_answer_says_what_was_converted(swept):
    folder, answer = swept
    assert (answer["finished"], answer["failed"]) == (4, 0)
    rows = {(row["mechanism"], row["participation"]): row for row in answer["rows"]}
    public, secret = rows["dp-dsgd", "cyclic"], rows["dp-dsgd", "balls-in-bins"]
    assert public["mu"] == pytest.approx(0.8)
    assert secret["mu"] is None
    assert 0.99 * EPSILON < secret["epsilon"] <= EPSILON
    assert answer["converted"] == [{"mu": 0.8, "epsilon": EPSILON, "delta": 1e-5}]
    assert rows["none", "balls-in-bins"]["final_test_loss_mean"] != rows["none", "cyclic"]["final_test_loss_mean"]
    records = Store.load(folder).records()
    assert {json.dumps(record["mu"]) for record in records} == {"null", "0.8", '"inf"'}
    for record in records:
        declared = record["guarantee"].endswith("not covered, declared public: the mean")
        assert declared == (record["participation"] == "balls-in-bins")
    steps = Store.load(folder).steps(next(r["cell"] for r in records if r["label"] == "dp-dsgd" and r["mu"] is None))
    assert steps.conditions["mu"] is None


def test_a_cell_that_was_converted_is_the_one_that_is_asked_for_by_epsilon():
    by_mu = SweepConfig(**ASKED).cells()
    options = {name: value for name, value in ASKED.items() if name != "mu"}
    by_epsilon = SweepConfig(**options | {"participation": "balls-in-bins"}, epsilon=EPSILON).cells()
    assert [cell.config.mechanisms for cell in by_epsilon] == [("none",), ("dp-dsgd",)]
    assert set(by_epsilon) < set(by_mu)
    assert len(by_mu) == 4


def test_the_page_and_the_table_bear_that_there_is_no_mu(swept, capsys):
    folder, _ = swept
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    for part in ("participation balls-in-bins", "participation cyclic", f"ε = {EPSILON:g}", "balls-in-bins"):
        assert part in page
    assert main(["sweep", "--status", str(folder)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "Secret batches have no mu" in output


def test_a_budget_that_secret_batches_cannot_have_is_refused_before_any_work():
    without = {name: value for name, value in ASKED.items() if name != "mu"}
    refuses("give --epsilon", SweepConfig, **without)
    refuses("mu", SweepConfig, **ASKED | {"mu": [0.8, -1.0]})
    refuses("one privacy target", SweepConfig, **ASKED, epsilon=[1.0])
    refuses("--unit user", SweepConfig, **ASKED, unit="user")
