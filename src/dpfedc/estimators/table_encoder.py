"""A table's rows as numbers, for those who want to see or reuse the encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin

from dpfedc.tables.encode import decoded, encoded_table
from dpfedc.tables.stored import frame_table
from dpfedc.tables.trial_records import as_schema


class TableEncoder(TransformerMixin, BaseEstimator):
    """Encode the rows of a DataFrame by a public schema, one by one.

    Numbers become (value - middle) / half of their range, in [-1, 1]; categories one 1 among zeros;
    gaps NaN. A range of "auto" leaves a number as it stands. `fit` looks at nothing: the encoding
    of a row depends on that row and the schema alone. Rows of one person are not brought together.

    Parameters
    ----------
    schema : Schema, path of a schema in TOML, or its content as a mapping

    Examples
    --------
    >>> import pandas as pd
    >>> from dpfedc import TableEncoder
    >>> age = {"name": "age", "kind": "number", "range": [0, 100]}
    >>> sex = {"name": "sex", "kind": "category", "values": ["F", "M"]}
    >>> encoder = TableEncoder({"column": [age, sex]})
    >>> frame = pd.DataFrame({"sex": ["M", "F", None], "age": [25, 130, 50]})
    >>> encoder.fit_transform(frame).tolist()
    [[-0.5, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, nan, nan, nan]]
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def fit(self, X: Any, y: Any = None) -> TableEncoder:
        """Look at nothing."""
        self.schema_ = as_schema(self.schema)
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the encoded rows; columns are found by name, and others are not read."""
        schema = as_schema(self.schema).without_persons().for_site()
        return encoded_table(frame_table(X), schema).X

    def inverse_transform(self, X: Any) -> npt.NDArray[np.float64]:
        """Return encoded rows in the units of the table; categories stay shares of their values."""
        return decoded(np.asarray(X, dtype=np.float64), as_schema(self.schema))

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Return the names of the encoded columns."""
        return np.array(as_schema(self.schema).features, dtype=object)
