import importlib
import sys
import warnings

import pytest

from consilience.renamed_modules import RENAMED


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_a_renamed_module_imports_with_a_warning_and_has_what_it_had(old):
    for name in [name for name in sys.modules if name == old or name.startswith(f"{old}.")]:
        del sys.modules[name]
    with warnings.catch_warnings(record=True) as caught:  # packages above it warn too, so all are collected
        warnings.simplefilter("always")
        module = importlib.import_module(old)
    assert f"{old} is deprecated since 0.2" in [str(warning.message).partition(" and goes")[0] for warning in caught]
    for place in RENAMED[old]:
        home = importlib.import_module(place)
        for name in getattr(home, "__all__", [name for name in vars(home) if not name.startswith("_")]):
            assert hasattr(module, name), f"{old}.{name}"
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018
