"""Documents of strangers: lists are validated up to the first entry that is wrong, wherever one stands."""

import importlib
import pkgutil
import typing

import consilience
from consilience.files.schemas import StrictModel, validate_entry_by_entry, validate_in_chunks


def models(base=StrictModel):
    """Yield all documents and their parts."""
    for model in base.__subclasses__():
        yield model
        yield from models(model)


def has_bare_list(annotation):
    """Return whether an annotation has a list whose every wrong entry would be told, at kilobytes each."""
    if typing.get_origin(annotation) is typing.Annotated:
        stops = (getattr(one, "fail_fast", getattr(one, "func", None)) for one in annotation.__metadata__)
        if any(stop is True or stop in (validate_in_chunks, validate_entry_by_entry) for stop in stops):
            return False
    if typing.get_origin(annotation) is list:
        return True
    return any(has_bare_list(one) for one in typing.get_args(annotation) if typing.get_origin(one) is not None)


def test_every_list_of_a_document_ends_at_the_first_wrong_entry():
    for module in pkgutil.walk_packages(consilience.__path__, "consilience."):
        importlib.import_module(module.name)
    found = [
        f"{model.__qualname__}.{name}"
        for model in models()
        for name, annotation in typing.get_type_hints(model, include_extras=True).items()
        if model.__module__.startswith("consilience.") and name != "model_config" and has_bare_list(annotation)
    ]
    assert found == []
