"""Containers and files: what is read goes back in the same container, dims and coords."""

import copy
import inspect
import pickle
import warnings

import numpy as np
import pytest

import consilience as cs
from consilience.draws.sampler_files import chain_files

COORDS = {"school": ["Choate", "Deerfield", "Andover"]}


@pytest.fixture(scope="module")
def arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return pytest.importorskip("arviz")


def values(seed=0, chains=4, length=250):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(chains, length, 3)) + np.arange(3)
    return {"theta": theta, "tau": np.exp(rng.normal(size=(chains, length)))}


def container(kind, seed, arviz):
    if kind == "mapping":
        return values(seed)
    if kind == "mapping without chains":
        return {name: own.reshape(1000, *own.shape[2:]) for name, own in values(seed).items()}
    idata = arviz.from_dict(
        posterior=values(seed),
        sample_stats={"diverging": np.zeros((4, 250), dtype=bool)},
        dims={"theta": ["school"]},
        coords=COORDS,
    )
    if kind == "InferenceData":
        return idata
    if kind == "Dataset":
        return idata.posterior
    import xarray

    return xarray.DataTree.from_dict({"/posterior": idata.posterior, "/sample_stats": idata.sample_stats})


KINDS = ["mapping", "mapping without chains", "InferenceData", "Dataset", "DataTree"]


@pytest.mark.parametrize("kind", KINDS)
def test_draws_come_back_in_the_container_that_they_came_in(kind, arviz, tmp_path):
    sites = [container(kind, seed, arviz) for seed in range(2)]
    told = {"prior": 0.5, "constraints": {"tau": "positive"}}
    fusion = cs.fuse([cs.Draws(site, **told) for site in sites], "gaussian_product")
    fusion.save(tmp_path / "fused.safetensors")
    for model in (fusion.model, cs.rebuild(cs.load(tmp_path / "fused.safetensors"))):
        assert type(model).__name__ == {"mapping": "dict", "mapping without chains": "dict"}.get(kind, kind)
        if kind.startswith("mapping"):
            expected = (1, 1000, 3) if kind == "mapping" else (1000, 3)
            assert model["theta"].shape == expected
            assert np.all(model["tau"] > 0)
            continue
        posterior = model if kind == "Dataset" else model["posterior"]
        assert posterior["theta"].dims == ("chain", "draw", "school")
        assert posterior["school"].values.tolist() == COORDS["school"]
        assert posterior["tau"].dims == ("chain", "draw")
        assert np.all(posterior["tau"].values > 0)
    if kind == "InferenceData":
        assert fusion.model.posterior.attrs["fused_by"] == "consilience gaussian_product"
        summary = arviz.summary(fusion.model, kind="stats")
        assert list(summary.index) == ["theta[Choate]", "theta[Deerfield]", "theta[Andover]", "tau"]
        assert fusion.draws.names == tuple(summary.index)


@pytest.mark.parametrize("kind", ["InferenceData", "DataTree"])
def test_relabelled_draws_keep_the_other_groups(kind, arviz):
    xarray = pytest.importorskip("xarray")
    rng = np.random.default_rng(0)
    mu = np.array([-4.0, 4.0]) + rng.normal(size=(2, 200, 2))
    mu[1] = mu[1, :, ::-1]
    idata = arviz.from_dict(
        posterior={"mu": mu}, sample_stats={"diverging": np.zeros((2, 200), bool)}, observed_data={"y": np.arange(9.0)}
    )
    groups = {name: idata[name] for name in idata.groups()}
    relabelled = cs.relabel(idata if kind == "InferenceData" else xarray.DataTree.from_dict(groups), ["mu"])
    for name in ("sample_stats", "observed_data"):
        kept = relabelled[name] if kind == "InferenceData" else relabelled[name].to_dataset()
        assert kept.equals(groups[name])
    assert np.ptp(relabelled["posterior"]["mu"].values.mean(axis=1), axis=0).max() < 1.0


def test_inference_data_is_fused_without_wrapping_it(arviz):
    sites = {name: container("InferenceData", seed, arviz) for seed, name in enumerate(("lund", "oslo"))}
    assert cs.fuse(sites, prior=0.5, constraints={"tau": "positive"}).draws.constraints["tau"].to_json() == "positive"
    with pytest.raises(cs.errors.InputError, match=r"lund, oslo: does not say what of the prior its draws hold"):
        cs.fuse(sites)


def test_arrays_have_chains_where_their_first_axis_is_the_shorter_one():
    assert cs.Draws({"a": np.zeros((4, 250))}).shape == (4, 250)
    assert cs.Draws({"a": np.zeros((250, 4))}).shape == (1, 250)
    assert cs.Draws({"a": np.zeros((100, 300))}, has_chains=False).shape == (1, 100)
    assert cs.Draws({"a": np.zeros(250), "b": np.zeros((250, 2))}).shape == (1, 250)
    with pytest.raises(cs.errors.InputError, match=r"variables do not agree in their draws: a \(250,\), b \(240,\)"):
        cs.Draws({"a": np.zeros(250), "b": np.zeros(240)})


def test_what_is_stated_of_draws_is_stated_by_name():
    variables, *stated = inspect.signature(cs.Draws).parameters.values()
    assert variables.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert {one.kind for one in stated} == {inspect.Parameter.KEYWORD_ONLY}


def test_arrays_of_the_caller_stay_writable_and_those_of_draws_do_not():
    array = np.zeros((4, 250))
    draws = cs.Draws({"a": array})
    array[0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        draws.variables["a"][0, 0] = 1.0


def test_draws_travel_to_another_process_and_stay_what_they_are():
    draws = cs.Draws({"beta": np.random.default_rng(0).normal(size=(2, 200, 3))}, prior={"beta": ("normal", 0, 1)})
    for again in (pickle.loads(pickle.dumps(draws)), copy.deepcopy(draws)):  # noqa: S301  (our own bytes)
        assert again.digest == draws.digest


def test_the_table_of_draws_has_moments_and_quantiles_of_every_parameter():
    rng = np.random.default_rng(0)
    values = {"beta": rng.normal(size=(2, 200, 2)), "tau": rng.gamma(2.0, size=(2, 200))}
    table = cs.Draws(values, prior=1.0, constraints={"tau": "positive"}).to_frame().set_index("parameter")
    for name, own in {
        "beta[0]": values["beta"][..., 0],
        "beta[1]": values["beta"][..., 1],
        "tau": values["tau"],
    }.items():
        ends = np.percentile(own.ravel(), [5, 95])
        np.testing.assert_allclose(table.loc[name], [own.mean(), own.std(), *ends, 0.9], rtol=1e-12)


def test_the_silent_objects_of_arviz_are_refused(arviz):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = arviz.from_dict({"posterior": {"theta": np.zeros((2, 200))}})
    with pytest.raises(cs.errors.InputError, match=r"is an array of objects: ArviZ 0\.x makes such ones"):
        cs.Draws(nested)


def test_what_holds_no_draws_says_so(arviz):
    with pytest.raises(cs.errors.InputError, match="without a group `posterior`"):
        cs.Draws(arviz.from_dict(prior={"theta": np.zeros((2, 200))}))
    with pytest.raises(cs.errors.UnsupportedError, match="holds no posterior draws"):
        cs.Draws(object())
    with pytest.raises(cs.errors.InputError, match="has no variables"):
        cs.Draws({})
    with pytest.raises(cs.errors.InputError, match="is of type <U1, expected real numbers"):
        cs.Draws({"a": np.array([["x"] * 200] * 2)})


@pytest.mark.parametrize(
    "coords", [["a", "b", "c"], [1, 2, 3], [0.5, 1.5, 2.5], np.array(["2020-01", "2020-02", "2020-03"], "M8[M]")]
)
def test_coordinates_of_any_type_survive_a_file(coords, tmp_path):
    draws = cs.Draws(values(), prior=0.5, dims={"theta": ("place",)}, coords={"place": coords})
    cs.save(draws, tmp_path / "a.safetensors")
    again = cs.load(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(again.coords["place"], np.asarray(coords))
    assert again.coords["place"].dtype == np.asarray(coords).dtype
    assert again.digest == draws.digest


HEADER = "lp__,accept_stat__,stepsize__,treedepth__,n_leapfrog__,divergent__,energy__"


def write_cmdstan(path, chain=1, draws=150, warmup=0, seed=0, divergent=0, columns="mu,S.1.1,S.2.1,S.1.2,S.2.2"):
    """Write a CSV as CmdStan does: configuration, header, warm-up, adaptation, draws, times."""
    rng = np.random.default_rng([seed, chain])
    lines = ["# stan_version_major = 2", "# model = demo_model", "# method = sample (Default)", "#   sample"]
    lines += ["#     num_samples = 1000 (Default)", f"#     num_warmup = {warmup or 1000}"]
    lines += [f"#     save_warmup = {int(warmup > 0)}", "#     thin = 1 (Default)", f"# id = {chain}"]
    lines.append(f"{HEADER},{columns}")
    rows = []
    for place in range(warmup + draws):
        mu = 100.0 if place < warmup else rng.normal()
        a = rng.normal(size=(2, 2)) + 2 * np.eye(2)
        s = a @ a.T
        cells = [
            -1.0,
            0.9,
            0.5,
            3,
            7,
            int(place - warmup in range(divergent)),
            1.0,
            mu,
            s[0, 0],
            s[1, 0],
            s[0, 1],
            s[1, 1],
        ]
        rows.append((mu, s))
        lines.append(",".join(f"{cell:.6g}" for cell in cells[: 8 + columns.count(",")]))
        if place == warmup:
            lines += ["# Adaptation terminated", "# Step size = 0.5", "# Diagonal elements of inverse mass matrix:"]
    lines += ["# ", "#  Elapsed Time: 0.01 seconds (Warm-up)"]
    path.write_text("\n".join(lines) + "\n")
    return rows[warmup:]


def test_cmdstan_files_are_read_chain_by_chain_first_index_fastest(tmp_path):
    rows = [write_cmdstan(tmp_path / f"lund_{chain}.csv", chain) for chain in (1, 2)]
    draws = cs.Draws([tmp_path / "lund_1.csv", tmp_path / "lund_2.csv"], constraints={"S": "covariance"})
    assert draws.shape == (2, 150)
    assert list(draws.variables) == ["mu", "S"]
    np.testing.assert_allclose(draws.variables["mu"][1], [mu for mu, _ in rows[1]], rtol=1e-5)
    np.testing.assert_allclose(draws.variables["S"][0], [s for _, s in rows[0]], rtol=1e-5)
    assert not draws.diverging.any()


def test_warm_up_that_was_saved_is_dropped(tmp_path):
    write_cmdstan(tmp_path / "a.csv", warmup=40)
    assert np.all(cs.Draws(tmp_path / "a.csv").variables["mu"] < 50)
    assert cs.Draws(tmp_path / "a.csv").shape == (1, 150)


def test_files_of_one_site_differ_in_a_number_at_their_end(tmp_path):
    for site, chain in (("lund", 1), ("lund", 2), ("oslo", 1), ("oslo", 2)):
        write_cmdstan(tmp_path / f"{site}_{chain}.csv", chain, seed=len(site) + ord(site[0]))
    told = {"prior": 0.5, "only": "mu"}
    fusion = cs.fuse(sorted(tmp_path.glob("*.csv")), **told)
    assert [site.name for site in fusion.inputs] == ["lund", "oslo"]
    assert fusion.draws.n_draws == 300
    assert fusion.draws.dropped == ("S",)
    again = cs.fuse(
        {"lund": [tmp_path / "lund_1.csv", tmp_path / "lund_2.csv"], "oslo": tmp_path / "oslo_1.csv"}, **told
    )
    assert again.draws.n_draws == 150
    assert cs.check(str(tmp_path / "*.csv"), **told) == []
    assert list(chain_files([tmp_path / "a_1.csv", tmp_path / "b.csv"])) == ["a", "b"]


def test_cmdstan_files_that_are_none_are_refused(tmp_path):
    write_cmdstan(tmp_path / "a_1.csv")
    path = tmp_path / "odd.csv"
    text = (tmp_path / "a_1.csv").read_text()
    cases = {
        "is a table of data by its columns": "a,b\n1,2\n",
        r"line \d+ has 3 cells, expected 12: the chain was cut off": text + "1,2,3\n",
        "has a cell that is no number": text + ",".join("x" * 12) + "\n",
        "is of CmdStan's method 'optimize'": text.replace("method = sample", "method = optimize"),
        "names a column twice": text.replace("S.2.2", "mu"),
        "its indices do not fill an array": text.replace("S.2.2", "S.3.3"),
        "which is no variable of Stan": text.replace("S.2.2", "S.x"),
        "has no draws after warm-up": text.split("\n-1")[0] + "\n",
    }
    for message, content in cases.items():
        path.write_text(content)
        with pytest.raises(cs.errors.FileFormatError, match=message):
            cs.Draws(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(cs.errors.FileFormatError, match="is not text in UTF-8"):
        cs.Draws(path)
    with pytest.raises(cs.errors.FileFormatError, match="cannot be read"):
        cs.Draws(tmp_path / "nowhere.csv")
    write_cmdstan(path, draws=120)
    with pytest.raises(cs.errors.InputError, match="has 120 draws, expected 150 as"):
        cs.Draws([tmp_path / "a_1.csv", path])
    write_cmdstan(path, columns="mu,S.1.1")
    with pytest.raises(cs.errors.InputError, match="has other columns than"):
        cs.Draws([tmp_path / "a_1.csv", path])
