"""The batch lane: files of requests that are worked off on replicas while nobody else needs them."""
