"""What all tests share."""

from hypothesis import settings

# No test asserts a time, so neither does hypothesis: machines are noisy.
settings.register_profile("explsched", deadline=None)
settings.load_profile("explsched")
