"""Algorithms on a path of four nodes (Zip-DL: of three), small enough to write their masks by hand."""

from mfdl import Dynamics, EveryStep, algorithms, gossip

MH = gossip.metropolis_hastings
PATH = Dynamics(MH("path:n=4"), 0.5)  # 0 - 1 - 2 - 3
DP = algorithms.dp_dsgd(PATH, EveryStep(2))
# columns: four private parts, then the edges 01, 12, 23
DECOR = algorithms.decor(PATH, EveryStep(2))
ZIP = algorithms.zip_dl(Dynamics(MH("path:n=3")), EveryStep(2))  # messages 00 01, 10 11 12, 21 22
