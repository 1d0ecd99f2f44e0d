"""Means and standard errors, against SciPy."""

import numpy as np
from scipy import stats

from dpfedc.research.spread import mean_and_error


def test_error_is_scipys_standard_error():
    values = np.random.default_rng(0).normal(size=(7, 4))
    values[2, 1] = np.nan
    mean, error = mean_and_error(values)
    np.testing.assert_allclose(mean, np.nanmean(values, axis=0))
    np.testing.assert_allclose(error, stats.sem(values, axis=0, nan_policy="omit"))
    assert mean_and_error(values[:, 0]) == (mean[0], error[0])


def test_too_few_values_have_no_error_or_no_mean():
    mean, error = mean_and_error([[1.0, np.nan, np.inf], [np.nan, np.nan, 2.0]])
    np.testing.assert_array_equal(mean, [1.0, np.nan, 2.0])
    assert np.isnan(error).all()
