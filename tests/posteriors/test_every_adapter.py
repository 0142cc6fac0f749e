"""Laws of every adapter of the table, whatever the library: what is described can be rebuilt, filed and fused.

What a library's own methods say of rebuilt models is asked in the files of the libraries.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience.posteriors.adapters.table import ADAPTERS
from tests.posteriors.adapters_zoo import KINDS, fitted
from tests.tolerances import ROUNDING

every_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def described(kind):
    return cs.describe(fitted(kind))


def arrays(posterior):
    """Every array of a posterior, by name."""
    found = {name: getattr(posterior, name) for name in ("natural", "prior", "counts", "weights")}
    found |= {f"attached {name}": attached.values for name, attached in posterior.attached.items()}
    return {name: values for name, values in found.items() if values is not None}


def assert_same(found, expected, rtol=0.0):
    assert (found.family, found.features, dict(found.source)) == (
        expected.family,
        expected.features,
        dict(expected.source),
    )
    mine, theirs = arrays(found), arrays(expected)
    assert sorted(mine) == sorted(theirs)
    for name, values in theirs.items():
        assert_allclose(mine[name], values, rtol=rtol, atol=rtol * np.abs(values).max(), err_msg=name)


@every_kind
def test_one_adapter_alone_accepts_it(kind):
    assert [adapter.kind for adapter in ADAPTERS if adapter.accepts(fitted(kind))] == [kind]
    assert described(kind).source["kind"] == kind


@every_kind
def test_components_are_members_of_their_family(kind):
    one = described(kind)
    assert one.family.check(one.natural) == []
    assert one.n_components > 1
    assert one.counts is None or np.all(one.counts >= 0)


@every_kind
def test_what_is_rebuilt_is_of_its_class_and_described_the_same(kind):
    rebuilt = cs.rebuild(described(kind))
    assert ADAPTERS[KINDS.index(kind)].accepts(rebuilt)
    assert_same(cs.describe(rebuilt), described(kind), ROUNDING)


@every_kind
def test_files_keep_every_bit(kind, tmp_path):
    cs.save(fitted(kind), tmp_path / "site.safetensors")
    found = cs.load(tmp_path / "site.safetensors")
    assert_same(found, described(kind))
    cs.save(found, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "site.safetensors").read_bytes()


@every_kind
def test_copies_average_to_the_model(kind):
    fusion = cs.fuse([described(kind)] * 2, "average")
    assert ADAPTERS[KINDS.index(kind)].accepts(fusion.model)
    found, expected = fusion.posterior.natural, described(kind).natural
    assert found.shape == expected.shape
    if not ADAPTERS[KINDS.index(kind)].recombines:  # as a process does, which two copies know better than one
        assert_allclose(found, expected, rtol=ROUNDING, atol=ROUNDING * np.abs(expected).max())


@every_kind
def test_a_posterior_of_another_family_is_refused(kind):
    family = cs.families.Gamma()
    other = cs.Posterior(family, family.to_natural(shape=[2.0, 3.0], rate=[1.0, 1.0]), source=described(kind).source)
    with pytest.raises(cs.InputError):
        cs.rebuild(other)


@every_kind
def test_a_posterior_that_lacks_what_rebuilding_needs_is_refused(kind):
    expected = described(kind)
    for lost in set(expected.source) - {"kind", "samples"}:
        source = {key: value for key, value in expected.source.items() if key != lost}
        with pytest.raises(cs.InputError):
            cs.rebuild(replace(expected, source=source))
