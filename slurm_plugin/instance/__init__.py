"""At most one daemon per cluster: a lock on its host, a heartbeat for other hosts, and directories of its cluster."""
