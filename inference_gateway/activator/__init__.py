"""Holds the requests of services without a ready replica, and answers for the gateway itself."""
