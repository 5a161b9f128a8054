"""Runs shared by processes under attack: damaged and foreign checkpoints, errors of the leader alone.
What goes on is the run that nobody disturbed; all else is refused in words.
"""

import json

import numpy as np
import pytest
import torch
from test_ranks import CYCLIC, DYNAMICS, EXACT, TASK, calibrated

import mfdl
from mfdl.errors import InvalidInput, RankLost
from mfdl.training import checkpoint, distributed

pytestmark = pytest.mark.slow
FORWARD = {"dtype": torch.float64, "metrics": ["train_loss"], "progress": False}


def trained(mechanism, folder=None, **how):
    return mfdl.replay(mechanism, TASK, seeds=[3], checkpoint_folder=folder, **(FORWARD | how)).seeds[0]


def assert_same(found, wanted):
    assert found.key_id == wanted.key_id
    for name in ("models", "loss", "accuracy", "steps"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=EXACT, atol=EXACT, err_msg=name)
    for kept in ("metrics", "released"):
        for name, values in getattr(wanted, kept).items():
            np.testing.assert_allclose(getattr(found, kept)[name], values, rtol=EXACT, err_msg=name)


def test_damaged_and_foreign_checkpoints_are_refused_and_the_ranks_go_on(tmp_path):
    mechanism, other = (calibrated(mfdl.algorithms.build("bsr", DYNAMICS, CYCLIC), mu=mu) for mu in (1.0, 2.0))
    alone = trained(mechanism)
    with distributed.ranks(2):
        for name, given in (("own", mechanism), ("foreign", other)):
            trained(given, tmp_path / name, stop_after=4)
        own, foreign = (tmp_path / name / "seed-3" for name in ("own", "foreign"))
        (tensors,), (others,) = (list(place.glob("models-*.safetensors")) for place in (own, foreign))
        whole, pointer = tensors.read_bytes(), (own / checkpoint.POINTER).read_text()
        edited = json.dumps(json.loads(pointer) | {"step": 2})
        damages = {
            "is damaged": lambda: tensors.write_bytes(whole[: len(whole) // 2]),
            "SHA-256": lambda: tensors.write_bytes(others.read_bytes()),
            "No such file": tensors.unlink,
            "is not valid JSON": lambda: (own / checkpoint.POINTER).write_text(pointer[: len(pointer) // 2]),
            "its content is not that of its checksum": lambda: (own / checkpoint.POINTER).write_text(edited),
        }
        for said, damage in damages.items():
            damage()
            with pytest.raises(InvalidInput, match=said):
                trained(mechanism, tmp_path / "own")
            tensors.write_bytes(whole)
            (own / checkpoint.POINTER).write_text(pointer)
        for how, said in (
            ({"dtype": torch.float32}, "key_id"),
            ({"metrics": []}, "metrics|tensors"),
            ({"clip_schedule": np.linspace(1.0, 0.5, 8)}, "key_id|clips"),
        ):
            with pytest.raises(InvalidInput, match=said):
                trained(mechanism, tmp_path / "own", **how)
        with pytest.raises(InvalidInput, match="mechanism_hash"):
            trained(mechanism, tmp_path / "foreign")
        assert_same(trained(mechanism, tmp_path / "own"), alone)


@pytest.mark.parametrize("error", [InvalidInput("no space left"), KeyError("mine")])
def test_an_error_of_the_leader_alone_ends_the_group_and_the_run_goes_on(tmp_path, error):
    """A full disk, or a function of the caller's: the others stand elsewhere, so nothing more is asked of them."""
    mechanism = calibrated(mfdl.algorithms.build("bsr", DYNAMICS, CYCLIC))

    def fails(at):
        raise error

    with distributed.ranks(2):
        with pytest.raises(type(error)):
            trained(mechanism, tmp_path, on_evaluation=fails)
        with pytest.raises(RankLost, match="start a new group"):
            trained(mechanism)
    with distributed.ranks(2):
        assert_same(trained(mechanism, tmp_path), trained(mechanism))
