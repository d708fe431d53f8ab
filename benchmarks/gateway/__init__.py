"""Measurements of the gateway, one module each: `measure()` gives named figures."""
