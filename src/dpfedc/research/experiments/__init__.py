"""The paper's experiments and ours: grids of runs in TOML files, run and reported by name."""
