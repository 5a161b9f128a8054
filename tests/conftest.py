"""Every property without settings of its own gets a share of Hypothesis's 100 examples.

Under a planted mutation (`mutations/run.py`) a failing case is not shrunk: that it fails is all that counts.
"""

import os

from effort import examples
from hypothesis import Phase, settings

PHASES = [Phase.explicit, Phase.generate] if "MUTATION_REPORT" in os.environ else list(Phase)

settings.register_profile("share", examples(100), phases=PHASES)
settings.load_profile("share")  # what a test sets itself inherits from it
