"""The options of a job, each defined once, in `table`. Uses only the standard library, and little of it."""
