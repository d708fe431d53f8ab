"""A busy site with honest and lying users on a private cluster: who gets what, with the daemon and without."""
