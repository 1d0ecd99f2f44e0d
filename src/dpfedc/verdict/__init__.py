"""Whether a run is worth its budget: rehearsed with invented records before it, and after it."""
