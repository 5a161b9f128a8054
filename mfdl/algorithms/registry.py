"""Algorithms by name, as the command line and configurations use them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import check
from ..check import FloatArray
from ..dynamics import Dynamics
from ..error_weights import ErrorWeights
from ..errors import InvalidInput, unknown_name
from ..factorization import SpaceTimeFactorization, SpatialFactorization, load
from ..participation import Participation
from . import factorized, memory, noise_on_messages, over_nodes, over_time_and_nodes
from .checks import builder
from .dsgd import anti_pgd, cdp, dp_dsgd, dsgd, mf_dsgd, muffliato
from .linear_algorithm import LinearAlgorithm

FILE_PREFIX = "file:"
WEIGHTS_MARK = "@"


ALL_SEEN = ("ldp", "eavesdropper", "colluding", "coalitions", "full-collusion")
LOCAL = (*ALL_SEEN, "pndp")  # noise that one node alone holds: good against all of them
SHARED = ("eavesdropper", "coalitions", "colluding")
ALONE = ("ldp", "full-collusion")  # where only noise that the victim alone holds is unknown


@dataclasses.dataclass(frozen=True)
class Entry:
    """One mechanism: its builder, its parameters, and where it comes from.

    Attributes:
        build: (dynamics, participation, **parameters) -> LinearAlgorithm.
        paper: where it comes from; "-" if nowhere.
        erratum: what its paper or public code has wrong and this library does otherwise; "-" if nothing.
        trust: the trust models it is meant for, in words.
        models: names of the trust models under which it protects as it is meant to, its own first.
        parameters: names and types of what `build` takes besides.
        release: the released models it can bear, where that is less than all of them.
        tuned: the builder with free parameters at their best; None: `build`.

    Defaults are those of noise that one node alone holds.
    """

    build: Callable[..., LinearAlgorithm]
    summary: str
    paper: str = "-"
    erratum: str = "-"
    trust: str = "ldp"
    models: tuple[str, ...] = LOCAL
    parameters: Mapping[str, type] = dataclasses.field(default_factory=dict)
    release: str | None = None
    tuned: Callable[..., LinearAlgorithm] | None = None

    @property
    def best(self) -> Callable[..., LinearAlgorithm]:
        """`tuned`, or `build` where that is None."""
        return self.tuned or self.build

    def takes(self, parameter: str) -> bool:
        """Whether `best` has a parameter of that name."""
        return parameter in inspect.signature(self.best).parameters

    @property
    def weighted(self) -> bool:
        """Whether `best` takes ErrorWeights, which say what models count."""
        return self.takes("weights")


MECHANISMS: Mapping[str, Entry] = {
    "none": Entry(dsgd, "D-SGD without noise", trust="none", models=()),
    "dp-dsgd": Entry(
        dp_dsgd,
        "fresh independent noise at every node and step (DP-D-SGD)",
        "the baseline of arXiv:2510.17480, 2405.01031 and 2501.14644",
        "clipping at Delta under replace-one moves a gradient by 2 Delta: adjacency is named, never assumed",
    ),
    "cdp": Entry(
        cdp,
        "independent noise, of which a server shows the average only; average=topology gossips over the graph",
        "the baseline of arXiv:2405.01031 and 2501.14644",
        "the code of 2501.14644 adds sqrt(n) times more noise to the average than this trust model needs",
        trust="central",
        models=("central",),
        parameters={"average": str},
    ),
    "anti-pgd": Entry(
        anti_pgd,
        "differences of consecutive noise",
        "arXiv:2510.17480, Appendix",
        "noise must be scaled by the sensitivity of C, which Algorithm 1 leaves out; D acts per node, D (x) I_n",
    ),
    "bsr": Entry(
        factorized.bsr,
        "banded square root of the prefix sum",
        "arXiv:2405.13763",
        "public code of 2510.17480 uses a symmetric Toeplitz matrix, which is not causal",
        parameters={"bandwidth": int},
    ),
    "bisr": Entry(
        factorized.bisr,
        "square root of the prefix sum with a banded inverse: noise made again from counters",
        "arXiv:2505.12128",
        parameters={"bandwidth": int},
    ),
    "lambda-cgd": Entry(
        factorized.lambda_cgd,
        "each step takes back a share of the last step's noise (DP-lambda-CGD)",
        "arXiv:2601.22334",
        parameters={"correlation": float},
    ),
    "d-mf": Entry(factorized.d_mf, "optimal encoder for one server (prefix sums)", "arXiv:2306.08153"),
    "mafalda": Entry(
        factorized.mafalda,
        "optimal shared encoder for the graph (MAFALDA-SGD)",
        "arXiv:2510.17480, Algorithm 2",
        "Cholesky factor of the wrong orientation (objective 1.5% above the optimum); Theorem 7 lacks a square",
    ),
    "mafalda-l": Entry(
        factorized.mafalda_l,
        "optimal encoder for each node (MAFALDA-L)",
        "arXiv:2510.17480, reference code",
    ),
    "mafalda-classes": Entry(
        factorized.mafalda_by_class,
        "optimal encoder for each class of nodes with equally many neighbours",
        "between MAFALDA-SGD and MAFALDA-L of arXiv:2510.17480",
    ),
    "banded": Entry(
        factorized.banded,
        "optimal encoder of few diagonals for the graph",
        "arXiv:2306.08153, with the error Gram of the graph",
        parameters={"bandwidth": int},
    ),
    "toeplitz": Entry(
        factorized.toeplitz,
        "optimal Toeplitz encoder for the graph, for many steps",
        "arXiv:2306.08153, with the error Gram of the graph",
        parameters={"bandwidth": int},
    ),
    "blt": Entry(
        factorized.blt,
        "optimal sum of few exponentials for the graph, constant memory (BLT)",
        "arXiv:2408.08868, with the error Gram of the graph",
        parameters={"buffers": int},
    ),
    "band-inv": Entry(
        factorized.band_inv,
        "optimal Toeplitz encoder with a banded inverse for the graph (Band-Inv-MF)",
        "arXiv:2505.12128, with the error Gram of the graph",
        parameters={"bandwidth": int},
    ),
    "time-space": Entry(
        over_time_and_nodes.time_space,
        "the best product of a correlation over time and one over nodes, from shared seeds",
        "this library; its halves are MAFALDA-SGD and CorN-DSGD",
        trust="eavesdropper; colluding and coalitions with coalition_size",
        models=SHARED,
        parameters={"coalition_size": int},
    ),
    "adapted": Entry(
        over_time_and_nodes.adapted,
        "a correlation over time for each direction over the nodes, from one shared seed",
        "this library",
        trust="eavesdropper",
        models=("eavesdropper",),
    ),
    "space-time": Entry(
        over_time_and_nodes.space_time,
        "the best correlation over time and nodes of any form, from one shared seed; small problems",
        "this library",
        trust="eavesdropper",
        models=("eavesdropper",),
    ),
    "muffliato": Entry(
        muffliato,
        "independent noise, several gossip rounds per gradient (Muffliato-SGD)",
        "arXiv:2206.05091",
        "its sum of squared marginal losses is no bound for noise shared by messages; (K-1) n zero rows, not K n",
        trust="pndp",
        models=("pndp", *ALL_SEEN),
        parameters={"gossip_rounds": int},
    ),
    "gradient-tracking": Entry(
        memory.gradient_tracking,
        "independent noise; nodes track the average gradient (DIGing)",
        "arXiv:1607.03218; with momentum arXiv:2209.15505",
    ),
    "exact-diffusion": Entry(
        memory.exact_diffusion,
        "independent noise; averages corrected for their bias",
        "arXiv:1702.05122",
    ),
    "delayed-dsgd": Entry(
        memory.delayed_dsgd,
        "independent noise; messages of others arrive some steps late",
        "arXiv:1710.06952, with one fixed delay",
        parameters={"delay": int},
    ),
    "two-hop-dsgd": Entry(
        memory.two_hop_dsgd,
        "independent noise; nodes forward last step's messages of their neighbours",
        "this library",
        parameters={"share": float},
    ),
    "local-steps": Entry(
        memory.local_steps,
        "independent noise; several gradient steps between two gossip rounds",
        "arXiv:2003.10422",
        parameters={"steps": int},
    ),
    "decor": Entry(
        over_nodes.decor,
        "private noise plus pairwise noise that cancels over edges (DECOR)",
        "arXiv:2405.01031, Algorithm 1",
        "line 3 of Algorithm 2 lacks the inverse; the search overshoots epsilon; public code reuses noise over steps",
        trust="eavesdropper, colluding, coalitions",
        models=SHARED,
        parameters={"sigma_local": float, "sigma_pair": float},
        tuned=over_nodes.tuned_decor,
    ),
    "corn": Entry(
        over_nodes.corn,
        "the best covariance over nodes, from shared seeds and private noise (CorN-DSGD, Whisper D-SGD)",
        "arXiv:2501.14644v2, problems (9) and (10); v1 as Whisper",
        "one seed for all protects against outsiders only; (9b) is no bound above epsilon = 36 at delta = 1e-5; "
        "problem (10) of v1 has its inequality reversed",
        trust="eavesdropper; colluding and coalitions with coalition_size",
        models=SHARED,
        parameters={"coalition_size": int, "horizon": int},
    ),
    "corn-pairwise": Entry(
        over_nodes.corn_pairwise,
        "the best mix of private and equal pairwise noise, the baseline of CorN-DSGD",
        "arXiv:2501.14644v2, problem (9), pairwise",
        "pairwise noises must be independent also on edges that share a node",
        trust="eavesdropper",
        models=("eavesdropper",),
        parameters={"horizon": int},
    ),
    "zip-dl": Entry(
        noise_on_messages.zip_dl,
        "noise per message that cancels in the average: nothing is private once final models are released",
        "arXiv:2403.11795, Algorithm 1",
        "infinite loss where self-messages count as seen; grows with T where they do not (as 2510.17480 has it)",
        trust="pndp",
        models=("pndp",),
        parameters={"sigma": float, "self_messages": bool},
        release="none",
    ),
}

OF_SECRET_BINS: Mapping[str, Entry] = {
    "mafalda-bins": Entry(
        factorized.mafalda_bins,
        "optimal shared encoder for the graph and secret batches, at one epsilon",
        "this library",
    ),
    "time-space-bins": Entry(
        over_time_and_nodes.time_space_bins,
        "the best covariance over nodes, and for it the best encoder for secret batches, at one epsilon",
        "this library",
        trust="eavesdropper",
        models=("eavesdropper",),
    ),
}
"""Mechanisms of secret batches alone, made for a target: their builders take the `noise_std` that meets it."""


def split(name: str) -> tuple[str, ErrorWeights | None]:
    """A mechanism and the error weights it is optimised for: "mafalda@last:48:0.01" or just "mafalda".

    >>> split("mafalda")
    ('mafalda', None)

    Raises: InvalidInput: weights that mean nothing, or a mechanism that optimises nothing.
    """
    check.text("'mafalda'", name=name)
    base, at, text = (name, "", "") if name.startswith(FILE_PREFIX) else name.partition(WEIGHTS_MARK)
    if not at:
        return base, None
    if base in MECHANISMS and not MECHANISMS[base].weighted:
        every = {**MECHANISMS, **OF_SECRET_BINS}
        able = ", ".join(other for other, entry in every.items() if entry.weighted)
        raise InvalidInput(f"{base!r} optimises nothing, so it takes no error weights ({text}); these do: {able}.")
    return base, ErrorWeights.parse(text)


def entry_of(name: str) -> Entry | None:
    """The entry of a name, with or without error weights; None for a file."""
    base = split(name)[0]
    return MECHANISMS.get(base) or OF_SECRET_BINS.get(base)


def is_of_secret_bins(name: str) -> bool:
    """Whether a mechanism is made for secret batches alone, and for a target."""
    return split(name)[0] in OF_SECRET_BINS


def parameters_of(name: str) -> Mapping[str, type]:
    """Names and types of what a mechanism's builder takes; none for a file."""
    entry = entry_of(name)
    return {} if entry is None else entry.parameters


def parse_parameters(name: str, settings: Iterable[str]) -> dict[str, Any]:
    """`key=value` texts as arguments of a mechanism's builder.

    Raises: InvalidInput: not key=value, a key the mechanism does not have, a value of another type.
    """
    known = parameters_of(name)
    arguments: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise InvalidInput(f"a setting must read key=value, got {text!r}.")
        if key not in known:
            if not known:
                raise InvalidInput(f"mechanism {name!r} has no parameters, got {text!r}.")
            raise unknown_name(f"parameter of {name}", key, known)
        kind = known[key]
        try:
            if kind is bool:
                arguments[key] = {"true": True, "false": False, "1": True, "0": False}[value.strip().lower()]
            else:
                arguments[key] = kind(value)
        except (KeyError, ValueError):
            raise InvalidInput(f"parameter {key} of {name} must be {kind.__name__}, got {value!r}.") from None
    return arguments


def check_name(name: str) -> str:
    """The name itself if it can be built; raises InvalidInput with the nearest name otherwise."""
    base, _ = split(name)
    if not name.startswith(FILE_PREFIX) and base not in MECHANISMS and base not in OF_SECRET_BINS:
        raise unknown_name("mechanism", base, [*MECHANISMS, *OF_SECRET_BINS, "file:FILE"])
    return name


@builder
def build(name: str, dynamics: Dynamics, participation: Participation, **parameters: Any) -> LinearAlgorithm:
    """The named algorithm with its parameters (see MECHANISMS).

    `NAME@WEIGHTS` is optimised for the models that these `ErrorWeights` count, free parameters included; its name keeps
    the weights. `file:FILE` is MF-D-SGD with that file's encoder, or the noise of its factorization. One encoder
    shared by all nodes is taken on any graph, where its loss is another and its guarantee is computed anew. For secret
    bins it is what it is for the same bins where they are public.
    Raises: InvalidInput: unknown name, parameters beside weights that decide them, or a file made for another
        participation, if it holds encoders, or for other nodes or gossip, if it holds noise correlated over nodes or
        encoders of single nodes.
    """
    check_name(name)
    if is_of_secret_bins(name):
        return _made_for_target(name, dynamics, participation, **parameters)
    if participation.public is not participation:
        return _drawn_secretly(build(name, dynamics, participation.public, **parameters), participation)
    if (entry := entry_of(name)) is not None:
        builder = entry.build if split(name)[1] is None else entry.best
        if parameters and builder is not entry.build:  # both would decide the same
            raise InvalidInput(
                f"{name!r} chooses {', '.join(entry.parameters)} for these error weights itself, got "
                f"{', '.join(parameters)}; leave that out, or the weights."
            )
        return _built(builder, name, dynamics, participation, **parameters)
    path = name.removeprefix(FILE_PREFIX)
    saved = load(path)
    if isinstance(saved.factorization, SpatialFactorization):
        return over_nodes.spatial_noise(dynamics, participation, saved.factorization, name=name)
    if isinstance(saved.factorization, SpaceTimeFactorization):
        return over_time_and_nodes.space_time_noise(dynamics, participation, saved.factorization, name=name)
    made_for = saved.header.get("participation")
    if made_for is not None and made_for.public != participation:  # encoders for secret bins serve public ones
        raise InvalidInput(
            f"{path} was made for {made_for.to_dict()}, not for {participation.to_dict()}; factorize again with this "
            "participation."
        )
    per_node = getattr(saved.encoder, "ndim", 0) == 3  # an encoder with structure is one for all
    of_gossip = saved.header.get("gossip_hash", "") if per_node else ""  # its nodes are that one's
    if of_gossip not in ("", dynamics.gossip.content_hash):
        raise InvalidInput(
            f"{path} holds an encoder for each node of another gossip matrix, so they would go to other nodes here; "
            "factorize again."
        )
    return mf_dsgd(dynamics, participation, saved.encoder, name=name)


def models_of(name: str, algorithm: LinearAlgorithm) -> tuple[str, ...]:
    """Names of the trust models under which a mechanism protects as it is meant to, its own first.

    Without noise: none at all, hence no model to contradict. A file's follow from who holds its noise.
    """
    if (entry := entry_of(name)) is not None:
        return entry.models
    return SHARED if shares_noise(algorithm) else LOCAL


def shares_noise(algorithm: LinearAlgorithm) -> bool:
    """Whether some part of its noise is held by several nodes; such noise counts as known where all but one collude."""
    noise = algorithm.noise
    return not (noise.local or noise.is_zero) and bool((noise.holders().astype(int).sum(axis=1) > 1).any())


def misplaced(algorithm: LinearAlgorithm, trust: str) -> str:
    """What to say of shared noise under a trust model in which it counts as known; empty elsewhere."""
    if trust not in ALONE or not shares_noise(algorithm):
        return ""
    return (
        f"Under {trust} noise that nodes share counts as known, so that only what the victim alone holds protects it: "
        f"noise shared between nodes is meant for {', '.join(SHARED)}."
    )


def shortsighted(algorithm: LinearAlgorithm) -> str:
    """What to say of noise over nodes that is the best for one step, in a run of several; empty elsewhere."""
    one_step = isinstance(algorithm.factorization, SpatialFactorization) and algorithm.factorization.horizon == 1
    T = algorithm.num_steps
    if not one_step or T == 1:
        return ""
    return (
        f"{algorithm.name} has the least noise in the models after one step, as published, and this run has {T}: its "
        f"noise is made for all of them by error weights all, or by horizon={T}."
    )


@builder
def build_tuned(
    name: str,
    dynamics: Dynamics,
    participation: Participation,
    *,
    coalition_size: int = 0,
    noise_std: Callable[[FloatArray], float] | None = None,
) -> LinearAlgorithm:
    """The named algorithm with its free parameters at their best against coalitions of a size (0: none).

    Args: noise_std: what a target asks of encoders, for mechanisms of secret batches (`OF_SECRET_BINS`).
    """
    entry = entry_of(check_name(name))
    if is_of_secret_bins(name):
        return _made_for_target(name, dynamics, participation, noise_std=noise_std)
    if participation.public is not participation:
        public = build_tuned(name, dynamics, participation.public, coalition_size=coalition_size)
        return _drawn_secretly(public, participation)
    if entry is None:
        return build(name, dynamics, participation)
    against = {"coalition_size": coalition_size} if entry.takes("coalition_size") else {}
    return _built(entry.best, name, dynamics, participation, **against)


def _drawn_secretly(public: LinearAlgorithm, participation: Participation) -> LinearAlgorithm:
    """The same algorithm where the map from records to steps is secret."""
    secret = dataclasses.replace(public, participation=participation)
    return secret.known_plain() if public.is_plain else secret


def _made_for_target(name: str, dynamics: Dynamics, participation: Participation, **parameters: Any) -> LinearAlgorithm:
    if parameters.get("noise_std") is None:
        raise InvalidInput(
            f"{name} is made for a target of secret batches: give --participation balls-in-bins with --epsilon (in "
            "Python noise_std=mfdl.privacy.noise_of_bins(...)), or take mafalda."
        )
    entry = entry_of(name)
    assert entry is not None
    return _built(entry.build, name, dynamics, participation, **parameters)


def _built(
    builder: Callable[..., LinearAlgorithm],
    name: str,
    dynamics: Dynamics,
    participation: Participation,
    **parameters: Any,
) -> LinearAlgorithm:
    _, weights = split(name)
    if weights is None:
        return builder(dynamics, participation, **parameters)
    weights.of_steps(participation.num_steps)  # refused before anything is solved
    weights.of_nodes(dynamics.num_nodes)
    return builder(dynamics, participation, weights=weights, **parameters).named(name)
