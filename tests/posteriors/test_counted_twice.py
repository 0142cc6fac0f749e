"""What a fused file rests on is in its provenance, so that no site counts twice."""

from dataclasses import replace

import numpy as np
import pytest

import consilience as cs
from consilience.posteriors.files import read_posterior
from tests.copies import COPIES
from tests.families.zoo import NAMES, ZOO

FAMILY = cs.families.NormalWishart(2)


def site(seed, components=3):
    """Return a posterior of some components with everything that a site may state."""
    rng = np.random.default_rng(seed)
    counts = 20.0 + rng.uniform(0, 30, components)
    natural = FAMILY.to_natural(
        mean=rng.normal(size=(components, 2)) + 9.0 * np.arange(components)[:, None],
        kappa=counts,
        inverse_scale=np.eye(2) * counts[:, None, None],
        dof=counts + 2,
    )
    return cs.Posterior(
        FAMILY,
        natural,
        prior=FAMILY.to_natural(mean=[[0.0, 0.0]], kappa=[1.0], inverse_scale=np.eye(2)[None], dof=[4.0])[0],
        counts=counts,
        weights=counts / counts.sum(),
        attached={"moves": cs.Attached(rng.uniform(size=(components, components)), ("component", "component"), "sum")},
    )


@pytest.fixture
def files(tmp_path):
    """Four sites' files."""
    paths = {name: tmp_path / f"{name}.safetensors" for name in "abcd"}
    for seed, path in enumerate(paths.values()):
        cs.save(site(seed), path)
    return paths


def test_relabelling_the_components_changes_no_digest():
    posterior = site(0)
    assert posterior.take(np.array([2, 0, 1])).digest == posterior.digest
    assert posterior.take(np.array([0, 1])).digest != posterior.digest


@pytest.mark.parametrize("name", NAMES)
def test_every_family_has_digests(name):
    family, natural = ZOO[name].family, ZOO[name].draw(np.random.default_rng(0), 4)
    order = np.array([3, 1, 0, 2])
    assert cs.Posterior(family, natural).digest == cs.Posterior(family, natural[order]).digest


@pytest.mark.parametrize("change", [
    {"natural": site(0).natural * (1 + 1e-15)}, {"prior": None}, {"counts": None}, {"weights": site(0).counts},
    {"attached": {}}, {"attached": {"steps": site(0).attached["moves"]}},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_what_is_said_is_in_the_digest(change):
    assert replace(site(0), **change).digest != site(0).digest


def with_zeros(zero):
    """A posterior that states zeros wherever it may, of a sign."""
    natural = FAMILY.to_natural(
        mean=[[0.0, 1.0], [2.0, 0.0]], kappa=[1.0, 1.0], inverse_scale=np.stack([np.eye(2)] * 2), dof=[5.0, 5.0]
    )
    prior = np.zeros(FAMILY.size)
    counts, moves = np.array([0.0, 3.0]), np.array([[0.0, 1.0], [1.0, 0.0]])
    natural, prior, counts, moves = (np.where(part == 0.0, zero, part) for part in (natural, prior, counts, moves))
    attached = cs.Attached(moves, ("component", "component"), "sum")
    return cs.Posterior(FAMILY, natural, prior=prior, counts=counts, weights=counts, attached={"moves": attached})


@pytest.mark.parametrize("field", ["natural", "prior", "counts", "weights", "attached"])
def test_the_sign_of_a_zero_is_not_in_the_digest(field):
    plain, signed = with_zeros(0.0), with_zeros(-0.0)
    own = getattr(signed, field)
    values = own["moves"].values if field == "attached" else own
    assert np.any(np.signbit(values) & (values == 0.0))
    assert replace(plain, **{field: own}).digest == plain.digest
    assert signed.take(np.array([1, 0])).digest == plain.digest


def test_names_and_meanings_are_not_in_the_digest(files):
    assert cs.load(files["a"]).digest == site(0).digest
    assert replace(site(0), features=cs.Features(names=("x", "y"))).digest == site(0).digest


def test_a_fused_file_and_its_own_site_are_refused_by_name(files, tmp_path):
    fused = tmp_path / "fused.safetensors"
    cs.fuse([files["a"], files["b"]]).save(fused)
    for models in ([fused, files["a"]], [files["c"], files["b"], fused]):
        (problem,) = cs.check(models)
        assert problem.subject == str(fused)
        assert "which is given too: it would count twice" in problem.text
        with pytest.raises(cs.errors.InputError, match="it would count twice"):
            cs.fuse(models)
    assert cs.check([fused, files["c"]]) == []


def test_objects_in_memory_are_known_by_what_they_say(files, tmp_path):
    fused = tmp_path / "fused.safetensors"
    cs.fuse({"lund": site(0), "oslo": site(1)}).save(fused)
    shuffled = site(0).take(np.array([1, 2, 0]))
    for again in (site(0), shuffled, files["a"]):
        assert "count twice" in cs.check([fused, again])[0]
    assert cs.check([fused, site(2)]) == []


def test_what_was_fused_twice_is_followed_to_its_sites(files, tmp_path):
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    cs.fuse([files["a"], files["b"]]).save(first)
    cs.fuse([first, files["c"]]).save(second)
    assert cs.check([second, files["a"]])[0].subject == str(second)
    assert cs.check([second, first])[0].subject == str(second)
    assert cs.check([second, files["d"]]) == []


def test_fused_files_that_share_a_site_are_refused(files, tmp_path):
    left, right = tmp_path / "left.safetensors", tmp_path / "right.safetensors"
    cs.fuse([files["a"], files["b"]]).save(left)
    cs.fuse([files["b"], files["c"]]).save(right)
    (problem,) = cs.check([left, right])
    assert f"was fused from b, as {left} was: what they share would count twice" in problem.text


@COPIES
def test_copies_of_a_model_are_no_fused_file():
    assert cs.check([site(0), site(0)]) == []


def test_the_order_of_arrival_changes_no_record(files, tmp_path):
    orders = ([files["a"], files["b"]], [files["b"], files["a"]])
    for number, models in enumerate(orders):
        cs.fuse(models).save(tmp_path / f"{number}.safetensors")
    first, second = ((tmp_path / f"{number}.safetensors").read_bytes() for number in (0, 1))
    assert first == second
    digests = read_posterior_provenance(tmp_path / "0.safetensors")
    assert {digests[site(seed).digest] for seed in (0, 1)} == {"a", "b"}


def read_posterior_provenance(path):
    """Return the digests that a fused file records."""
    return read_posterior(path)[1]["result"]["site_digests"]


def test_a_folder_of_files_is_compared_too(files, tmp_path):
    cs.fuse([files["a"], files["b"]]).save(tmp_path / "fused.safetensors")
    assert any("count twice" in problem for problem in cs.check(tmp_path))
    with pytest.raises(cs.errors.InputError, match="count twice"):
        cs.fuse(tmp_path)
