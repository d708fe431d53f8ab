"""What all tests share."""

import signal

from hypothesis import settings

# No test asserts a time, so neither does hypothesis: machines are noisy.
settings.register_profile("explsched", deadline=None)
settings.load_profile("explsched")

# A shell without job control starts `command &` ignoring SIGINT, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
