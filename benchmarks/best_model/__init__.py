"""How soon, and for how many GPU-hours, a sweep has its best model: `python -m benchmarks.best_model --curves DIR`."""
