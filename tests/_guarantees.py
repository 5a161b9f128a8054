"""Guarantees of victims one by one, from losses that are at hand."""

from mfdl import Losses, Privacy


def guarantees(algorithm, losses, *, noise_std, adaptive=True, **question):
    of_victims = Losses.of_victim_sensitivities(algorithm, Privacy(**question), losses)
    return of_victims.by_victim(noise_std, adaptive=adaptive)
