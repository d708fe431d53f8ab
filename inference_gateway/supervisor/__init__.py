"""Runs a gateway on one node: HAProxy, the activator and the control plane, each started again when it ends."""
