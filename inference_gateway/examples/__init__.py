"""A tiny model server, to try the gateway without a GPU."""
