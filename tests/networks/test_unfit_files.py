"""Files and folders that are no whole network are refused where networks are fused, each in one line."""

import pytest
import torch
from safetensors.torch import save_file

import consilience as cs


def two_folders(tmp_path, *names):
    folders = [tmp_path / "a", tmp_path / "b"]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        for name in names:
            (save_file if name.endswith(".safetensors") else torch.save)(
                {"w": torch.full((2,), float(seed))}, folder / name
            )
    return folders


def test_parts_of_a_checkpoint_are_no_networks(tmp_path):
    name = "model-00001-of-00002.safetensors"
    files = [folder / name for folder in two_folders(tmp_path, name)]
    with pytest.raises(cs.errors.InputError, match=r"is part 1 of 2 of a checkpoint.*; merge the folders") as refused:
        cs.fuse(files, "average")
    assert len(refused.value.problems) == 2
    assert cs.check(files, "average") == list(refused.value.problems)


def test_one_part_of_one_is_a_network(tmp_path):
    name = "model-00001-of-00001.safetensors"
    assert cs.fuse([folder / name for folder in two_folders(tmp_path, name)], "average").network is not None


@pytest.mark.parametrize("act", [cs.fuse, lambda models: raised(cs.check(models))], ids=["fuse", "check"])
def test_a_folder_of_other_files_is_named_for_what_it_has(tmp_path, act):
    folders = two_folders(tmp_path, "pytorch_model.bin")
    message = r"a: no file named .* is here: pytorch_model\.bin is a pickle of torch .*weights_only=True"
    with pytest.raises(cs.errors.InputError, match=message):
        act(folders)


def raised(problems):
    raise cs.errors.InputError(problems)
