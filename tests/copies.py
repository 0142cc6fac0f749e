"""The mark of laws on copies of a model, of which `fuse` warns that they count twice."""

import pytest

COPIES = pytest.mark.filterwarnings("ignore::consilience.errors.TwiceWarning")
