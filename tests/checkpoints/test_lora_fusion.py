"""LoRA adapters are models that `fuse` takes, and rounds: what comes out is what `merge` writes."""

import json
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import consilience as cs
from consilience.api.kinds import ADAPTERS
from tests.checkpoints.some_adapters import PREFIX, SIZES, changes, factors, write_adapter
from tests.checkpoints.test_lora_files import changes_of_diffusers, diffusers, expected, kohya, mean


def two(folder, **config):
    """Return the folders of two adapters of different ranks."""
    ranks = dict.fromkeys(SIZES, 6)
    one = write_adapter(folder / "lund", factors(0), **config)
    return one, write_adapter(folder / "oslo", factors(1, ranks), r=6, **config)


def tensors_of(adapter, folder):
    adapter.write(folder)
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
@pytest.mark.parametrize("rank", [None, 3, 0.9])
def test_fuse_gives_what_merge_writes(tmp_path, weights, rank):
    models = two(tmp_path)
    fusion = cs.fuse(list(models), weights=weights, **({} if rank is None else {"rank": rank}))
    merged = cs.merge(models, tmp_path / "merged", weights=weights, rank=rank)
    found, wanted = tensors_of(fusion.model, tmp_path / "out"), load_file(merged.output / "adapter_model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    configs = [json.loads((place / "adapter_config.json").read_text()) for place in (tmp_path / "out", merged.output)]
    assert configs[0] == configs[1]
    assert fusion.site_names == ("lund", "oslo")
    assert fusion.details["ranks"] == merged.provenance["details"]["adapters"]["ranks"]
    assert "the weighted mean of the adapters' products" in fusion.verdict.text
    assert fusion.verdict.harmless is None


def test_paths_objects_and_files_are_the_same_models(tmp_path):
    models = two(tmp_path)
    read = [cs.LoraAdapter.read(model) for model in models]
    for name, adapter in zip(("lund", "oslo"), read, strict=True):
        cs.save(adapter, tmp_path / f"{name}.safetensors", n_observations=40)
    files = [tmp_path / f"{name}.safetensors" for name in ("lund", "oslo")]
    digests = {cs.fuse(list(given)).model.digest for given in (models, read, files, [models[0], read[1]])}
    assert len(digests) == 1
    assert cs.load(files[0]).n_observations == 40


def test_a_fused_file_is_read_by_merge_and_goes_into_a_base(tmp_path):
    models = two(tmp_path)
    cs.fuse(list(models)).save(tmp_path / "fused.safetensors")
    folder = cs.merge([tmp_path / "fused.safetensors"], tmp_path / "folder").output
    a, b = map(changes, models)
    for module, found in changes(folder).items():
        torch.testing.assert_close(found, (a[module] + b[module]) / 2, atol=1e-5, rtol=1e-5)
    base = {f"{module}.weight": torch.zeros(size) for module, size in SIZES.items()}
    save_file(base, tmp_path / "base.safetensors")
    into = cs.merge([f"{tmp_path / 'base.safetensors'}+{tmp_path / 'fused.safetensors'}"], tmp_path / "o.safetensors")
    for module, found in ((module, load_file(into.output)[f"{module}.weight"]) for module in SIZES):
        torch.testing.assert_close(found.double(), (a[module] + b[module]) / 2, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", [kohya, diffusers])
def test_files_of_other_programs_are_fused_and_written_as_they_are(tmp_path, make):
    one, two = make(tmp_path / "a.safetensors", 0), diffusers(tmp_path / "b.safetensors", 1)
    fusion = cs.fuse([two, one])
    fusion.model.write(tmp_path / "out.safetensors")
    wanted = mean([expected(0, 3.0 if make is kohya else None), expected(1)])
    found = changes_of_diffusers(tmp_path / "out.safetensors")
    assert all(torch.allclose(found[key], wanted[key], atol=1e-5) for key in wanted)
    fusion.save(tmp_path / "fused.safetensors")
    cs.load(tmp_path / "fused.safetensors").write(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "out.safetensors").read_bytes()


def test_sixteen_bits_travel_as_they_are(tmp_path):
    models = [write_adapter(tmp_path / name, factors(seed, dtype=torch.bfloat16)) for seed, name in enumerate("ab")]
    adapter = cs.LoraAdapter.read(models[0])
    cs.save(adapter, tmp_path / "a.safetensors")
    stored = tensors_of(cs.load(tmp_path / "a.safetensors"), tmp_path / "again")
    assert all(torch.equal(stored[name], values) for name, values in factors(0, dtype=torch.bfloat16).items())
    assert {one.dtype for one in cs.fuse(models).model.tensors.values()} == {"BF16"}


def test_folders_of_the_base_and_of_the_training_do_not_travel(tmp_path):
    config = {"base_model_name_or_path": "/home/alice/patients/llama"}
    cs.save(cs.LoraAdapter.read(write_adapter(tmp_path / "a", factors(0), **config)), tmp_path / "a.safetensors")
    tags = {"ss_tag_frequency": '{"alice": 3}', "ss_base_model_version": "sd_v1"}
    cs.save(
        cs.LoraAdapter.read(kohya(tmp_path / "k", 0).rename(tmp_path / "k.safetensors")), tmp_path / "b.safetensors"
    )
    cs.save(cs.LoraAdapter.read(kohya(tmp_path / "t.safetensors", 0, metadata=tags)), tmp_path / "c.safetensors")
    for name in "abc":
        assert b"alice" not in (tmp_path / f"{name}.safetensors").read_bytes()
    assert cs.load(tmp_path / "a.safetensors").config["base_model_name_or_path"] == "llama"
    assert b"sd_v1" in (tmp_path / "c.safetensors").read_bytes()


def test_what_an_adapter_file_tells_is_said(tmp_path, capsys):
    from tests.cli.running import command

    whole = factors(0) | {f"{PREFIX}model.norm.weight": torch.ones(8)}
    adapter = cs.LoraAdapter.read(write_adapter(tmp_path / "a", whole, modules_to_save=["norm"]))
    cs.save(adapter, tmp_path / "a.safetensors", n_observations=40)
    shown = command("inspect", tmp_path / "a.safetensors").out
    assert "Modules that were trained as a whole, and biases, travel whole" in " ".join(shown.split())
    assert "norm" in shown
    assert not ADAPTERS.pack(tmp_path / "a.safetensors", tmp_path / "b.safetensors")  # it can be sent as it is
    for foreign in (tmp_path / "a", tmp_path / "a/adapter_model.safetensors"):
        of_peft = command("inspect", foreign).out
        assert of_peft.startswith("This is a LoRA adapter of ")
        assert "in the convention of peft" in of_peft
    few = cs.LoraAdapter.read(tmp_path / "a")
    with pytest.raises(cs.errors.InputError, match="is about 3 observations, fewer than 5: nothing may leave"):
        cs.fuse([few, cs.describe(few, n_observations=3)])


@pytest.mark.parametrize(
    ("second", "options", "error", "message"),
    [
        ({"use_dora": True}, {}, cs.errors.InputError, "oslo: sets use_dora"),
        ({"base_model_name_or_path": "org/other"}, {}, cs.errors.InputError, "oslo: base_model_name_or_path is 'org/o"),
        ({}, {"rank": 1.5}, cs.errors.OptionError, "rank must be a positive integer, or between 0 and 1, found 1.5"),
        ({}, {"method": "ties"}, cs.errors.OptionError, "'ties' is for checkpoints .*, not for LoRA adapters; give"),
        ({}, {"weights": [1, -1]}, cs.errors.OptionError, "sum to 0"),
        ({}, {"n_observations": [1, 2]}, cs.errors.OptionError, "adapters count by `weights=`"),
    ],
)
def test_what_cannot_be_fused_is_named_by_site(tmp_path, second, options, error, message):
    paths = {
        "lund": write_adapter(tmp_path / "a", factors(0)),
        "oslo": write_adapter(tmp_path / "b", factors(1), **second),
    }
    with pytest.raises(error, match=message):
        cs.fuse(paths, **options)


def test_whole_modules_of_some_sites_need_their_base(tmp_path):
    whole = factors(1) | {f"{PREFIX}model.norm.weight": torch.ones(8)}
    models = {"lund": write_adapter(tmp_path / "a", factors(0)), "oslo": write_adapter(tmp_path / "b", whole)}
    with pytest.raises(
        cs.errors.InputError, match=r"merge them with their base: `consilience merge \.\.\. --base BASE`"
    ):
        cs.fuse(models)


def test_an_adapter_with_a_network_is_refused(tmp_path):
    network = torch.nn.Linear(2, 2)
    with pytest.raises(cs.errors.InputError):
        cs.fuse([cs.LoraAdapter.read(two(tmp_path)[0]), network])
    save_file(dict(network.state_dict()), tmp_path / "net.safetensors")
    with pytest.raises(cs.errors.InputError, match="is no LoRA adapter"):
        cs.LoraAdapter.read(tmp_path / "net.safetensors")


def test_damaged_adapter_files_are_refused(tmp_path):
    cs.save(cs.LoraAdapter.read(write_adapter(tmp_path / "a", factors(0))), tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    for number, (old, new) in enumerate([
        (b'\\"format_version\\": 1', b'\\"format_version\\": 9'), (b'\\"peft_type\\"', b'\\"peft_typo\\"'),
        (b'\\"r\\": 4', b'\\"r\\": 5'), (b'\\"config\\"', b'\\"konfig\\"'),
    ]):  # fmt: skip
        assert old in data
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(data.replace(old, new))
        with pytest.raises(cs.errors.InputError):
            cs.fuse([path, tmp_path / "a.safetensors"])


def test_a_folder_that_cannot_be_sent_is_named_as_it_was_typed(tmp_path):
    folder = write_adapter(tmp_path / "mine", factors(0), use_dora=True)
    with pytest.raises(cs.errors.InputError, match="mine: sets use_dora") as refused:
        cs.federated.send_folder(folder, tmp_path / "round", "lund")
    assert "packed" not in str(refused.value)


def run_round(folder, sites, **options):
    """Serve a round whose sites have sent their adapters; return its result and the fused file."""
    place = folder / "round"
    for site, path in sites.items():
        cs.federated.send_folder(path, place, site)
    output = folder / "fused.safetensors"
    return cs.federated.serve_folder(place, output, sites=list(sites), deadline=20, poll=0.05, **options), output


@pytest.mark.parametrize("rank", [None, 3])
def test_sites_send_folders_and_files_and_get_the_exact_mean(tmp_path, rank):
    folders = two(tmp_path)
    third = cs.LoraAdapter.read(write_adapter(tmp_path / "c", factors(2)))
    cs.save(third, tmp_path / "riga.safetensors", n_observations=30)
    sites = {"lund": folders[0], "oslo": folders[1], "riga": tmp_path / "riga.safetensors"}
    weights = {"lund": 1.0, "oslo": 2.0, "riga": 1.0}
    options = {} if rank is None else {"rank": rank}
    result, output = run_round(tmp_path, sites, weights=weights, **options)
    assert [record.site for record in result.report.took_part] == ["lund", "oslo", "riga"]
    merged = cs.merge([*folders, tmp_path / "c"], tmp_path / "merged", weights=[1, 2, 1], rank=rank)
    found, wanted = (
        tensors_of(cs.load(output), tmp_path / "out"),
        load_file(merged.output / "adapter_model.safetensors"),
    )
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    report = cs.federated.receive_folder(tmp_path / "round", tmp_path / "back.safetensors", timeout=5)
    assert (tmp_path / "back.safetensors").read_bytes() == output.read_bytes()
    assert report.fused["bytes"] == output.stat().st_size


def test_sites_that_do_not_fit_are_left_out_with_the_reason(tmp_path):
    far = {name: 1e6 * values for name, values in factors(4).items()}
    sites = {"a": write_adapter(tmp_path / "a", factors(0)), "b": write_adapter(tmp_path / "b", factors(1)),
             "c": write_adapter(tmp_path / "c", factors(2)), "d": write_adapter(tmp_path / "d", far),
             "e": write_adapter(tmp_path / "e", factors(3), base_model_name_or_path="org/other")}  # fmt: skip
    result, _ = run_round(tmp_path, sites)
    left_out = {record.site: " ".join(record.reasons) for record in result.report.left_out}
    assert left_out.keys() == {"d", "e"}
    assert "products of size" in left_out["d"]
    assert "base_model_name_or_path is 'org/other'" in left_out["e"]


def test_two_rounds_in_which_sites_train_on(tmp_path):
    place, results = tmp_path / "round", {}

    def site(name, seed):
        def refine(fused, number):
            assert (fused is None) == (number == 1)
            folder = tmp_path / f"{name}-{number}"
            return cs.LoraAdapter.read(write_adapter(folder, factors(10 * seed + number)))

        results[name] = cs.federated.take_part(place, name, refine, timeout=60)

    threads = [threading.Thread(target=site, args=(name, seed)) for seed, name in enumerate(("lund", "oslo"))]
    for thread in threads:
        thread.start()
    output = tmp_path / "fused.safetensors"
    done = cs.federated.serve_folder(
        place, output, sites=["lund", "oslo"], rounds=2, deadline=60, poll=0.05, method="average"
    )
    for thread in threads:
        thread.join()
    assert len(done.reports) == 2
    wanted = cs.merge([tmp_path / f"{name}-2" for name in ("lund", "oslo")], tmp_path / "merged")
    found, stored = (
        tensors_of(cs.load(output), tmp_path / "out"),
        load_file(wanted.output / "adapter_model.safetensors"),
    )
    assert all(np.array_equal(found[name], stored[name]) for name in stored)
    assert results.keys() == {"lund", "oslo"}
