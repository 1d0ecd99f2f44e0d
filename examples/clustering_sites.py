"""Three hospitals find common groups of patients without putting their records in one place."""

import numpy as np

from dpfedc import DPFedC, stack_sites

# Each hospital has an array with one record per row. Here: age and blood pressure of invented
# patients, from three groups that are not spread evenly over the hospitals.
rng = np.random.default_rng(0)
young, middle, old = (25, 115), (50, 160), (80, 130)
oslo = rng.normal([young] * 600 + [old] * 100, scale=4)
bergen = rng.normal([young] * 200 + [middle] * 500, scale=4)
tromso = rng.normal([middle] * 150 + [old] * 400, scale=4)

# The estimator takes the records of all sites, and for each record the site it belongs to.
X, sites = stack_sites([oslo, bergen, tromso])

# What is known of adults in general. Ranges are public, so they must not be looked up in X.
ranges = [(18, 100), (80, 220)]
model = DPFedC(n_clusters=3, epsilon=2.0, feature_ranges=ranges, random_state=0)
model.fit(X, sites=sites)

print("Verdict:", model.verdict_.word)
for cluster in model.summary().clusters:
    age, pressure = (column.values[0] for column in cluster.columns)
    print(f"{cluster.title}: {cluster.size_low} to {cluster.size_high} patients")
    print(f"  age      {age.mean:5.1f}, between {age.low:5.1f} and {age.high:5.1f}")
    print(f"  pressure {pressure.mean:5.1f}, between {pressure.low:5.1f} and {pressure.high:5.1f}")
promise = model.privacy_
print(f"Promise: epsilon {promise.epsilon:.2f}, delta {promise.delta:g}, for every {promise.unit}")
print("Group of a new patient of 30 with pressure 120:", model.predict([[30.0, 120.0]])[0])
