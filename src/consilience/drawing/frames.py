"""Values as tables: columns by name, and data frames of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from consilience.errors import UnsupportedError


class Tabular:
    """A value of which a table is what people want."""

    __slots__ = ()

    @abstractmethod
    def to_columns(self) -> Mapping[str, Sequence[Any]]:
        """Return the table as columns of one length by name, which every library of tables takes.

        ``polars.DataFrame(value.to_columns())`` and ``pyarrow.table(value.to_columns())`` need nothing between.
        """

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame.

        polars reads it through the interchange protocol, ``polars.from_dataframe(value.to_frame())``.

        Raises
        ------
        UnsupportedError
            Without pandas.
        """
        try:
            import pandas  # here, so that the library starts, and works, without it
        except ModuleNotFoundError as error:
            raise UnsupportedError(
                "",
                "a data frame needs pandas, which is not installed",
                "pip install 'consilience[tables]', or take the columns with `to_columns()`",
                "E-EXTRA",
            ) from error
        return pandas.DataFrame({name: list(values) for name, values in self.to_columns().items()})
