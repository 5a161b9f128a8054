"""Clip rules: by how much a gradient is scaled, as a function of its norm; no result is longer than the clipping norm.

In: the name of a rule and a clipping norm. Out: a `ClipRule`, whose weights `clipping` rounds towards zero. Sensitivity
needs only that bound, so a guarantee holds under every rule; one that rests on a Lipschitz constant of the local maps
holds under the flat rule alone (`replay_config.clip_rule`).

Source: Bu et al., arXiv:2206.07136 (AUTO-S).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterable

import torch

from .. import check
from ..errors import InvalidInput
from ..spec import Entry, Registry, kebab_case

SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-30, 1e30
"""Outside this range the products of float32 gradients and factors leave the normal numbers."""
SMALLEST_GAMMA = 1e-6
"""So no weight exceeds 1e36, and the weight of a zero gradient is a number in float32 too."""

CLIP_RULES: Registry[Entry] = Registry("clipping", supplied=("norm",), by_position=True)
"""Clip rules that a text can name."""


def _require_range(least: float, **value: float) -> None:
    ((name, number),) = value.items()
    if not least <= check.positive(**value) <= LARGEST_CLIP_NORM:
        raise InvalidInput(
            f"{name} must be between {least:g} and {LARGEST_CLIP_NORM:g}, got {number:g}; rescale the loss."
        )


@dataclasses.dataclass(frozen=True)
class ClipRule(abc.ABC):
    """A weight for each gradient.

    Attributes: norm: the clipping norm, at least the norm of every weighted gradient; in [1e-30, 1e30].
    """

    norm: float

    def __post_init__(self) -> None:
        _require_range(SMALLEST_CLIP_NORM, clip_norm=self.norm)

    def __str__(self) -> str:
        """Its name and numbers without the norm; runs of different texts share no noise and no checkpoint."""
        values = [str(getattr(self, field.name)) for field in dataclasses.fields(self) if field.name != "norm"]
        return ":".join([kebab_case(type(self).__name__), *filter(None, values)])

    @abc.abstractmethod
    def weights(self, norms: torch.Tensor, norm: float) -> torch.Tensor:
        """Weights of gradients by their norms, such that weight times norm is at most `norm`.

        Args: norms: float64, >= 0; norm: a little below `self.norm`.
        Guarantees: the computed weight is at most norm / norms (1 + 2^-52), at most 1e36, and 0 or nan where norms
            are not finite.
        """

    def parts(self, names: Iterable[str]) -> list[tuple[ClipRule, list[str]]]:
        """Parameters that are clipped together, each group by its rule; the squares of the norms add up to C^2 at most.

        Args: names: of all parameters of a module, in its order, in which the groups follow each other.
        """
        return [(self, [*names])]

    @property
    def words(self) -> str:
        """What a statement says of a rule other than the flat one."""
        return ""


@CLIP_RULES.register()
@dataclasses.dataclass(frozen=True)
class Flat(ClipRule):
    """A gradient longer than the clipping norm C is scaled to norm C: min(1, C / ||g||) g."""

    def weights(self, norms: torch.Tensor, norm: float) -> torch.Tensor:
        return (norm / norms).clamp(max=1.0)  # norm 0: inf -> 1; norm inf: 0; norm nan: nan


@CLIP_RULES.register(example="automatic:0.01")
@dataclasses.dataclass(frozen=True)
class Automatic(ClipRule):
    """Every gradient is normalised, C / (||g|| + gamma) g: C scales gradients and noise alike, gamma decides."""

    gamma: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_range(SMALLEST_GAMMA, gamma=self.gamma)

    def weights(self, norms: torch.Tensor, norm: float) -> torch.Tensor:
        return norm / (norms + self.gamma)

    @property
    def words(self) -> str:
        return f"{self}, each gradient g times {self.norm:g} / (||g|| + {self.gamma:g})"


@CLIP_RULES.register(example="quantile:0.7")
@dataclasses.dataclass(frozen=True)
class Quantile(ClipRule):
    """Flat at a norm that follows a quantile of the norms of a node's records, and divided by it (`quantile_norm`).

    Attributes: quantile: share of the norms below, in (0, 1); share: of C that pays for the quantile, in (0, 1).
    """

    quantile: float = 0.7
    share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check.open_unit(quantile=self.quantile)
        check.open_unit(share=self.share)

    weights = Flat.weights

    @property
    def words(self) -> str:
        return f"{self}, at a norm that each model learns from a share {self.share:g} of the clipping norm"


@CLIP_RULES.register(example="layers:1:2")
@dataclasses.dataclass(frozen=True)
class Layers(ClipRule):
    """Flat for each layer at its own norm C_l, sum C_l^2 = C^2; a layer has the parameters of one submodule.

    A layer whose gradient is not finite gives zero and counts as one dropped gradient, beside the other layers.

    Attributes: ratios: of the C_l, in the order of the layers, as a text: "1:2"; default all C_l are equal.
    """

    ratios: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            numbers = [float(ratio) for ratio in self.ratios.split(":") if ratio]
        except ValueError:
            raise InvalidInput(f"ratios must be numbers > 0 as in layers:1:2, got {self.ratios!r}.") from None
        for number in numbers:
            _require_range(SMALLEST_CLIP_NORM, ratio=number)
        object.__setattr__(self, "ratios", ":".join(map(str, numbers)))

    weights = Flat.weights

    def parts(self, names: Iterable[str]) -> list[tuple[ClipRule, list[str]]]:
        layers: dict[str, list[str]] = {}
        for name in names:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        ratios = [float(ratio) for ratio in self.ratios.split(":") if ratio] or [1.0] * len(layers)
        if len(ratios) != len(layers):
            raise InvalidInput(
                f"clipping {self} has {len(ratios)} ratios, and the module has {len(layers)} layers with parameters: "
                f"{', '.join(layer or 'itself' for layer in layers)}; give one for each, or layers alone."
            )
        whole = math.hypot(*ratios) * (1 + 2.0**-50)  # more than what rounds up below
        return [(Flat(self.norm * ratio / whole), group) for ratio, group in zip(ratios, layers.values(), strict=True)]

    @property
    def words(self) -> str:
        return f"{self}, each layer at its share of the clipping norm, whose squares add up to its square"


def parse(text: str, norm: float) -> ClipRule:
    """The clip rule that a text names.

    >>> str(parse("automatic", 1.0)), parse("automatic:0.1", 2.0)
    ('automatic:0.01', Automatic(norm=2.0, gamma=0.1))

    Raises: InvalidInput: another text, or a number out of range.
    """
    rule: ClipRule = CLIP_RULES.make(check.text("'automatic:0.01'", clipping=text), norm=norm)
    return rule
