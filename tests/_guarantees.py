"""Guarantees of victims one by one from given losses, and sensitivities of Grams and algorithms."""

from mfdl import Losses, Privacy
from mfdl.privacy.forms import view_grams
from mfdl.privacy.gram_sensitivity import largest_sensitivity, sensitivities


def guarantees(algorithm, losses, *, noise_std, adaptive=True, **question):
    """Of losses that `sensitivity_by_victim` computed for this question."""
    of_victims = Losses.from_sensitivities(algorithm, Privacy(**question), losses)
    return of_victims.by_victim(noise_std, adaptive=adaptive)


def sensitivity_of_gram(gram, participation, *, node=0, method="exact"):
    """`sensitivities` of one Gram."""
    return sensitivities([gram], participation, nodes=[node], method=method)[0]


def worst_sensitivity(algorithm, trust, participation=None):
    """The largest sensitivity over all victims, for non-adaptive gradients."""
    scheme = algorithm.participation if participation is None else participation
    candidates = []
    for model, victims in trust.members(algorithm):
        grams = view_grams(model.view(algorithm, victims[0] if victims else 0), victims)
        candidates += sensitivities(grams, scheme, nodes=victims)
    return largest_sensitivity(candidates)
