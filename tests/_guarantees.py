"""Guarantees of victims one by one, from losses that are at hand."""

from mfdl.privacy.losses import PrivacyLosses
from mfdl.privacy.questions import Question


def guarantees(algorithm, losses, *, noise_std, adaptive=True, **question):
    """Of losses that `victim_losses` computed for this question."""
    of_victims = PrivacyLosses.of_victim_losses(algorithm, Question(**question), losses)
    return of_victims.by_victim(noise_std, adaptive=adaptive)
