"""Content hashes: every mechanism under every participation scheme, and what guarantees and mechanisms carry."""

from _cases import SCHEMES, TRUST, fixed, mechanism_names
from _stored import compare

import mfdl
from mfdl import InvalidInput, UnsupportedMechanism

QUESTION = {"adjacency": "zero-out", "clip_norm": 1.0}


def test_content_hashes_of_algorithms():
    def content_hash(name, scheme):
        try:
            return fixed(name, scheme).content_hash
        except (InvalidInput, UnsupportedMechanism) as refusal:
            return f"refused: {type(refusal).__name__}"

    compare("hashes", {name: {scheme: content_hash(name, scheme) for scheme in SCHEMES} for name in mechanism_names()})


def test_content_hashes_and_fingerprints_of_mechanisms():
    cases = [("dp-dsgd", trust, "cyclic") for trust in TRUST] + [("dp-dsgd", "ldp", scheme) for scheme in SCHEMES]
    cases += [
        (name, "eavesdropper", "cyclic") for name in ("bsr", "decor", "corn", "per-mode", "muffliato", "toeplitz")
    ]
    values = {}
    for name, trust, scheme in cases:
        mechanism = mfdl.calibrate(fixed(name, scheme), mfdl.Privacy(TRUST[trust], **QUESTION), noise_std=2.0)
        carried = {"mechanism": mechanism.content_hash, "fingerprint": mechanism.guarantee.fingerprint}
        values[f"{name}, {trust}, {scheme}"] = carried
    user = mfdl.calibrate(
        fixed("bsr", "every-step"), mfdl.Privacy(TRUST["ldp"], unit="user", **QUESTION), noise_std=2.0
    )
    carried = {"mechanism": user.content_hash, "fingerprint": user.guarantee.fingerprint}
    compare("fingerprints", values | {"bsr, ldp, every-step, of a user": carried})
