"""Checkpoints hold models that may not be released: only their owner may read them, whatever folder they are in."""

import stat

import torch

from mfdl.training import checkpoint


def modes(folder):
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_checkpoints_in_a_folder_that_everybody_may_read(tmp_path):
    """A new one, one that replaces it, and one that replaces files which somebody opened to all."""
    tmp_path.chmod(0o755)
    models = {"state": torch.zeros(2)}
    for step in (1, 1, 2):
        checkpoint.save(tmp_path, step=step, models=models, metadata={})
        assert modes(tmp_path) == {0o600}
        for path in tmp_path.iterdir():
            path.chmod(0o644)
