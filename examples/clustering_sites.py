"""Three sites find common clusters without putting their records in one place."""

import numpy as np

from dpfedc import DPFedC, stack_sites

# Each site has an array with one record per row. Here: age and blood pressure of patients,
# from groups that are not spread evenly over the sites.
rng = np.random.default_rng(0)
young, middle, old = (25, 115), (50, 160), (80, 130)
oslo = rng.normal([young] * 60 + [old] * 10, scale=4)
bergen = rng.normal([young] * 20 + [middle] * 50, scale=4)
tromso = rng.normal([middle] * 15 + [old] * 40, scale=4)

# The estimator takes the records of all sites, and for each record the site it belongs to.
X, sites = stack_sites([oslo, bergen, tromso])
model = DPFedC(n_clusters=3, random_state=0).fit(X, sites=sites)

print("Centres (age, blood pressure):")
print(model.cluster_centers_.round(1))
for i, name in enumerate(["Oslo", "Bergen", "Tromso"]):
    counts = np.bincount(model.labels_[sites == i], minlength=3)
    print(f"{name}: {counts.tolist()} records in clusters 0, 1, 2")
print("A new patient of 30 with pressure 120: cluster", model.predict([[30.0, 120.0]])[0])
