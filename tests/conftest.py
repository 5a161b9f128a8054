"""Every property without settings of its own gets a share of Hypothesis's 100 examples."""

from effort import examples
from hypothesis import settings

settings.register_profile("share", examples(100))
settings.load_profile("share")
