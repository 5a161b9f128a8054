"""Mechanisms in files: what comes back is what was accounted, and no file makes a number smaller than the truth."""

import dataclasses
import re

import numpy as np
import pytest
import scipy.sparse as sp
from archives import edited
from vocabulary import ZERO_OUT, dynamics_on, each, given, refuses

from mfdl import (
    BallsInBins,
    Cyclic,
    Dynamics,
    EveryStep,
    Guarantee,
    InvalidInput,
    Mechanism,
    PoissonSampling,
    Privacy,
    TrustModel,
    algorithms,
    archive,
    calibrate,
    gossip,
    privacy,
    replay,
    trust,
)
from mfdl.noise import NoiseOperator
from mfdl.privacy import MonteCarlo
from mfdl.privacy.guarantee import STATED
from mfdl.testing import ALL_NAMES, build_algorithm, linear_algorithms, user_algorithms
from mfdl.testing.tasks import linear_task

RING = dynamics_on("ring:n=4", 0.5)
TRUSTS = {
    "ldp": trust.LDP(), "eavesdropper": trust.Eavesdropper(), "colluding": trust.Colluding((1, 2)),
    "pndp": trust.PNDP([2]), "any-receiver": trust.AnyReceiver(), "coalitions": trust.Coalitions(1),
    "full-collusion": trust.FullCollusion(), "central": trust.Central(),
    "released": trust.ReleasedOnly(),
}  # fmt: skip


def calibrated(algorithm=None, model=None, **target):
    algorithm = algorithms.bsr(RING, Cyclic(2, 3), bandwidth=2) if algorithm is None else algorithm
    options = {"trust": model or trust.LDP(), "adjacency": "replace-one", "clip_norm": 0.7}
    return calibrate(algorithm, Privacy(**options), **(target or {"epsilon": 3.0, "delta": 1e-5}))


def assert_same(algorithm, again):
    assert again.content_hash == algorithm.content_hash
    assert again.dynamics.gossip.content_hash == algorithm.dynamics.gossip.content_hash
    assert again.dynamics.gossip.labels == algorithm.dynamics.gossip.labels
    assert repr(again.factorization) == repr(algorithm.factorization)
    gradients = np.eye(algorithm.num_steps * algorithm.num_nodes)
    base = np.eye(algorithm.noise.shape[1])
    assert np.array_equal(again.messages_from_gradients @ gradients, algorithm.messages_from_gradients @ gradients)
    assert np.array_equal(again.messages_from_noise @ base, algorithm.messages_from_noise @ base)
    for model in (trust.LDP(), trust.Eavesdropper()):
        before, after = (privacy.sensitivity_by_victim(each, model, method="certified") for each in (algorithm, again))
        for name in ("non_adaptive_sensitivity", "adaptive_sensitivity", "fingerprint"):
            assert [getattr(loss, name) for loss in after] == [getattr(loss, name) for loss in before]


@given(60, algorithm=linear_algorithms(ALL_NAMES))
def test_algorithms_of_the_registry_come_back_as_they_were(algorithm):
    assert_same(algorithm, archive.copied(algorithm, "algorithm"))


@given(60, algorithm=user_algorithms())
def test_algorithms_of_a_user_come_back_as_they_were(algorithm):
    assert_same(algorithm, archive.copied(algorithm, "algorithm"))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_each_mechanism_keeps_its_guarantee(tmp_path, name):
    parameters = {"coalition_size": 1} if name == "corn" else {}
    algorithm = build_algorithm(name, RING, Cyclic(2, 2), **parameters)
    options = {"adjacency": "zero-out", "clip_norm": 1.0}
    saved = calibrate(algorithm, Privacy(trust.Eavesdropper(), **options), noise_std=2.0)
    saved.save(tmp_path / name)
    loaded = Mechanism.load(tmp_path / name)
    assert (loaded.guarantee, loaded.guarantee.seal) == (saved.guarantee, saved.guarantee.seal)
    assert (loaded.guarantee.source, loaded.content_hash, repr(loaded)) == ("", saved.content_hash, repr(saved))


def test_labels_schedules_sequences_and_divisors(tmp_path):
    W = np.array([[0.5, 0.5], [0.25, 0.75]])
    first, other = (gossip.from_array(matrix, labels=("Ann", np.int64(7))) for matrix in (W, W[::-1, ::-1]))
    dynamics = Dynamics(gossip.sequence([first, other]), learning_rate=[0.5, 0.25, 0.125])
    algorithm = algorithms.dp_dsgd(dynamics, EveryStep(3)).with_divisors([2.0, 3.0])
    saved = calibrated(algorithm, trust.PNDP(["Ann"]), mu=1.0)
    saved.save(tmp_path / "m")
    loaded = Mechanism.load(tmp_path / "m")
    assert loaded.algorithm.dynamics.gossip.labels == ("Ann", np.int64(7))
    assert isinstance(loaded.algorithm.dynamics.gossip.labels[1], np.int64)
    assert loaded.algorithm.divisors.tolist() == [2.0, 3.0]
    assert loaded.algorithm.dynamics.learning_rates(3).tolist() == [0.5, 0.25, 0.125]
    assert loaded.guarantee == saved.guarantee


@pytest.mark.parametrize("name", ["plain", "with.suffix", "m.npz", "é ü", "new/folder/m.mfdl"])
def test_exactly_the_path_given_is_written_and_nothing_else(tmp_path, name):
    calibrated().save(tmp_path / name)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [name]
    assert Mechanism.load(str(tmp_path / name)).guarantee.mu > 0


def test_a_target_keeps_its_delta_and_a_user_keeps_the_unit(tmp_path):
    options = {"trust": trust.LDP(), "adjacency": "add-remove", "clip_norm": 1.0}
    saved = calibrate(algorithms.dp_dsgd(RING, EveryStep(3)), Privacy(unit="user", **options), epsilon=2.0, delta=0.001)
    saved.save(tmp_path / "m")
    loaded = Mechanism.load(tmp_path / "m")
    assert (loaded.unit, loaded.guarantee.stated_delta, loaded.content_hash) == ("user", 1e-3, saved.content_hash)


@pytest.mark.parametrize("name", TRUSTS)
def test_trust_models_that_are_shipped_are_accounted_anew(tmp_path, name):
    options = {"adjacency": "zero-out", "clip_norm": 1.0}
    saved = calibrate(algorithms.dp_dsgd(RING, Cyclic(2, 2)), Privacy(TRUSTS[name], **options), noise_std=1.0)
    saved.save(tmp_path / "m")
    loaded = Mechanism.load(tmp_path / "m")
    assert (loaded.guarantee, loaded.guarantee.source, loaded.trust) == (saved.guarantee, "", TRUSTS[name])


def test_masks_of_a_user_are_code_so_the_guarantee_is_as_stated_until_they_are_given(tmp_path):
    masked = TrustModel.from_masks(seen=lambda algorithm: algorithm.sent, name="all seen")
    saved = calibrated(model=masked, mu=1.0)
    saved.save(tmp_path / "m")
    loaded = Mechanism.load(tmp_path / "m")
    assert loaded.trust is None
    assert loaded.guarantee.source == STATED
    assert STATED in repr(loaded)
    assert STATED in str(loaded.guarantee)
    known = Mechanism.load(tmp_path / "m", trust=masked)
    assert (known.guarantee, known.guarantee.source) == (saved.guarantee, "")
    again = tmp_path / "again"
    loaded.save(again)
    assert Mechanism.load(again).guarantee.source == STATED


class OwnNoise(NoiseOperator):
    def __init__(self, num_steps, num_nodes):
        self.num_steps, self.num_nodes = num_steps, num_nodes
        super().__init__((num_steps * num_nodes, num_steps * num_nodes))

    def _matmat(self, X):
        return X

    _rmatmat = _matmat

    def variances(self):
        return np.ones((self.num_steps, self.num_nodes))


class OwnScheme(EveryStep):
    pass


class OwnGossip(gossip.GossipMatrix):
    pass


@each(
    "change, message",
    (lambda algorithm: {"noise": OwnNoise(algorithm.num_steps, algorithm.num_nodes)}, "noise of the algorithm"),
    (lambda algorithm: {"participation": OwnScheme(algorithm.num_steps)}, "participation of .* cannot"),
    (lambda algorithm: {"dynamics": Dynamics(OwnGossip(sp.eye_array(4), range(4)))}, "gossip.*holds no OwnGossip"),
    (
        lambda _: {"dynamics": Dynamics(gossip.from_array(np.eye(4), labels=[*"abc", frozenset()]))},
        "no frozenset",
    ),
    ids=["noise", "participation", "gossip", "labels"],
)
def test_code_of_the_users_own_is_refused_in_words(tmp_path, change, message):
    algorithm = algorithms.dp_dsgd(RING, EveryStep(2))
    mechanism = calibrated(dataclasses.replace(algorithm, **change(algorithm)), trust.Eavesdropper(), mu=1.0)
    refuses(message, mechanism.save, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def parts_of(header):
    return header["content"]["algorithm"]["fields"]


def restated(change):
    """An edit of the guarantee in a file, by a function of its JSON form."""

    def edit(header, arrays):
        guarantee = archive.Unpacker(arrays)(header["content"]["guarantee"])
        change(guarantee)
        header["content"]["guarantee"] = archive.Packer()(guarantee, "guarantee")

    return edit


@pytest.mark.parametrize("anew", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (restated(lambda fields: fields.update(clip_norm=9.0)), "its guarantee was edited|must be"),
        (restated(lambda fields: fields["curve"].update(mu=1e-3)), "mu must be at least"),
        (restated(lambda fields: fields["curve"].update(mu=9e9)), "its guarantee was edited|mu must be"),
        (restated(lambda fields: fields.update(noise_std=9.0)), "its guarantee was edited|must be"),
        (restated(lambda fields: fields.update(sensitivity=1e-9)), "its guarantee was edited|must be"),
        (restated(lambda fields: fields.update(sensitivity="1")), "sensitivity must be"),
        (restated(lambda fields: fields.update(fingerprint="", seal="")), "its guarantee was edited"),
        (lambda h, a: h["content"].update(content_hash="0" * 16), "0000 was saved"),
        (lambda h, a: h["content"].update(trust={"is": "Eavesdropper", "fields": {}}), "another trust model"),
        (lambda h, a: h["content"].update(trust={"is": "Nobody", "fields": {}}), "does not hold a mechanism"),
        (lambda h, a: h["content"].pop("algorithm"), "does not hold a mechanism"),
        (lambda h, a: parts_of(h).update(name="mine"), "its algorithm has content hash"),
        (lambda h, a: parts_of(h)["participation"]["fields"].update(epochs=1, period=6), "has content hash"),
        (lambda h, a: [array.__imul__(3) for array in a.values() if array.dtype == float], "must|has content hash"),
        (lambda h, a: parts_of(h).update(kinds={"is": "os", "fields": {}}), "does not hold"),
        (lambda h, a: a.clear(), "does not hold a mechanism"),
    ],
    ids=[
        "clip", "mu-down", "mu-up", "noise", "sensitivity", "text", "unsealed", "hash", "trust",
        "no-trust", "no-algorithm", "name", "participation", "arrays", "class", "no-arrays",
    ],
)  # fmt: skip
def test_an_edited_file_is_refused_even_with_a_checksum_that_fits(tmp_path, change, message, anew):
    path = tmp_path / "m"
    calibrated().save(path)
    edited(path, change)
    refuses(message, Mechanism.load, path, anew=anew)


def lowered(factor):
    """Sensitivity and mu times a factor, sealed as the accountant seals."""

    def change(content):
        guarantee = privacy.Guarantee.from_dict(content)
        value = float(np.nextafter(guarantee.sensitivity * factor, np.inf))
        curve = dataclasses.replace(guarantee.curve, mu=guarantee.mu * factor * (1 + 1e-9))
        other = dataclasses.replace(guarantee, curve=curve, sensitivity=value)
        content |= other.sealed(guarantee.fingerprint).to_dict()

    return restated(change)


def test_a_forged_sensitivity_is_found_by_accounting_anew_and_labelled_without(tmp_path):
    path, saved = tmp_path / "m", calibrated()
    saved.save(path)
    edited(path, lowered(0.5))
    refuses(r"states mu = .* accounted anew it is", Mechanism.load, path)
    refuses(r"accounted anew", lambda: Mechanism.load(path, trust=trust.LDP()))
    believed = Mechanism.load(path, anew=False)
    assert believed.guarantee.source == STATED
    assert STATED in repr(believed)
    assert STATED in believed._repr_html_()


@pytest.mark.parametrize("factor", [1 - 1e-7, 1.5])
def test_a_number_changed_within_rounding_or_upwards_is_replaced_by_the_true_one(tmp_path, factor):
    path, saved = tmp_path / "m", calibrated()
    saved.save(path)
    edited(path, lowered(factor))
    loaded = Mechanism.load(path)
    assert (loaded.guarantee.mu, loaded.guarantee.source) == (saved.guarantee.mu, "")


def test_a_forged_trust_model_is_found_by_who_names_their_own(tmp_path):
    path = tmp_path / "m"
    algorithm = algorithms.decor(RING, EveryStep(2), sigma_ldp=1.0, sigma_cor=2.0)
    options = {"adjacency": "zero-out", "clip_norm": 1.0}
    calibrate(algorithm, Privacy(trust.Eavesdropper(), **options), noise_std=1.0).save(path)
    assert Mechanism.load(path).guarantee.trust == "eavesdropper"
    with pytest.raises(InvalidInput, match="another trust model") as refused:
        Mechanism.load(path, trust=trust.LDP())
    for model in (trust.Eavesdropper(), trust.LDP()):
        assert f"{model.name!r}, against {model.attacker}" in str(refused.value)
    assert "anew" not in str(refused.value)
    assert not re.search("[0-9a-f]{16}", str(refused.value))


def test_words_that_were_edited_and_sealed_are_not_kept(tmp_path):
    path = tmp_path / "m"
    calibrated().save(path)

    def change(content):
        guarantee = privacy.Guarantee.from_dict(content)
        other = dataclasses.replace(guarantee, attacker="everybody in the world", trust="everything")
        content |= other.sealed(guarantee.fingerprint).to_dict()

    edited(path, restated(change))
    assert "everybody in the world" not in repr(Mechanism.load(path))


RING_OF_THREE = dynamics_on("ring:n=3", 0.5)
PRIVACY = Privacy(trust.PNDP([0]), **ZERO_OUT)
ENCODED = dataclasses.replace(algorithms.mafalda(RING_OF_THREE, Cyclic(2, 3)), participation=BallsInBins(2, 3))
FEW = MonteCarlo(samples=2**12, failure=1e-3, seed=4)
MADE = {
    "bins": lambda: calibrate(algorithms.dp_dsgd(RING_OF_THREE, BallsInBins(2, 3)), PRIVACY, noise_std=2.0),
    "samples": lambda: calibrate(ENCODED, dataclasses.replace(PRIVACY, method=FEW), noise_std=2.0),
    "poisson": lambda: calibrate(
        algorithms.decor(RING_OF_THREE, PoissonSampling(0.5, 4), sigma_ldp=1.0, sigma_cor=1.0),
        dataclasses.replace(PRIVACY, trust=trust.Colluding((1,)), adjacency="replace-one"),
        noise_std=2.0,
    ),
}


def forged(path, *, seal=True, algorithm_hash=None, **changes):
    """The file anew with fields of its guarantee that were edited, and a checksum, and by choice a seal, that fit."""

    def change(header, arrays):
        parts = header["content"]
        guarantee = Guarantee.from_dict(archive.Unpacker(arrays)(parts["guarantee"]))
        other = dataclasses.replace(guarantee, **changes) if changes else guarantee
        parts["guarantee"] = archive.Packer()((other.sealed(guarantee.fingerprint) if seal else other).to_dict(), "")
        parts["algorithm_hash"] = algorithm_hash or parts["algorithm_hash"]

    return edited(path, change)


@pytest.mark.parametrize("kind", list(MADE))
def test_what_comes_back_is_what_was_accounted(kind, tmp_path):
    mechanism = MADE[kind]()
    again = Mechanism.load(mechanism.save(tmp_path / "made"))
    assert (again.content_hash, again.guarantee) == (mechanism.content_hash, mechanism.guarantee)
    assert (again.guarantee.seal, str(again.guarantee)) == (mechanism.guarantee.seal, str(mechanism.guarantee))
    assert "as stated in the file" not in str(again.guarantee)
    as_written = Mechanism.load(tmp_path / "made", anew=False)
    assert as_written.guarantee == mechanism.guarantee
    assert "as stated in the file" in str(as_written.guarantee)


def test_a_file_that_promises_more_is_refused(tmp_path):
    mechanism = MADE["bins"]()
    path = tmp_path / "made"
    guarantee = mechanism.guarantee
    smaller, larger = guarantee.sensitivity / 2, guarantee.noise_std * 2
    refuses("was edited", lambda: Mechanism.load(forged(mechanism.save(path), seal=False, sensitivity=smaller)))
    better = dataclasses.replace(guarantee.curve, noise_multiplier=2 * guarantee.noise_multiplier)
    refuses("states epsilon", lambda: Mechanism.load(forged(mechanism.save(path), curve=better, sensitivity=smaller)))
    refuses("content hash", lambda: Mechanism.load(forged(mechanism.save(path), noise_std=larger)))
    other = dataclasses.replace(guarantee.curve, adjacency="replace-one")
    again = Mechanism.load(forged(mechanism.save(path), curve=other))
    assert again.guarantee.adjacency == "replace-one"  # another question
    refuses(".", lambda: Mechanism.load(forged(mechanism.save(path), algorithm_hash="0" * 16)))
    worse = dataclasses.replace(guarantee.curve, noise_multiplier=guarantee.noise_multiplier / 8)
    weaker = Mechanism.load(forged(mechanism.save(path), curve=worse))
    assert weaker.guarantee.epsilon(1e-6) == guarantee.epsilon(1e-6)


def test_a_run_with_secret_batches_comes_back(tmp_path):
    mechanism = MADE["bins"]()
    scaled = dataclasses.replace(linear_task(3, np.ones((12, 2))), public_constants="the mean")
    run = replay(mechanism, scaled, seeds=[0], progress=False)
    again = type(run).load(run.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.seeds[0].models, run.seeds[0].models)
    assert again.statement() == run.statement()
    assert "the mean" in again.statement()
