"""HAProxy as the carrier of requests: its configuration, its process, its socket."""
