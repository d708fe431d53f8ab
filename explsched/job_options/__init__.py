"""What a job can tell explsched, each option spelt once: in `table`. Only the standard library, and little of it."""
