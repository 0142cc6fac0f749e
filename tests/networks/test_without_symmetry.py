"""Networks whose units are taken as they are numbered: a tied weight stands once, whatever the networks come as."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import consilience as cs


class Tied(nn.Module):
    """An embedding whose weights are the decoder's too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens):
        return self.decoder(self.embedding(tokens).mean(dim=1))


@pytest.mark.parametrize("form", ["modules", "state dicts", "files"])
def test_tied_weights_are_averaged_once_and_stay_tied(form, tmp_path):
    modules = [Tied() for _ in range(3)]
    models, options = modules, {}
    if form != "modules":
        models, options = [module.state_dict() for module in modules], {"module": Tied}
    if form == "files":
        for number, state in enumerate(models):
            save_file({key: values.clone() for key, values in state.items()}, tmp_path / f"{number}.safetensors")
        models = sorted(tmp_path.iterdir())
    fusion = cs.fuse(models, "average", **options)
    assert fusion.network.symmetry.aliases == {"decoder.weight": "embedding.weight"}
    assert set(fusion.network.arrays) == {"embedding.weight", "decoder.bias"}
    assert fusion.model.decoder.weight is fusion.model.embedding.weight
    expected = torch.stack([module.embedding.weight for module in modules]).mean(dim=0)
    torch.testing.assert_close(fusion.model.embedding.weight, expected)
