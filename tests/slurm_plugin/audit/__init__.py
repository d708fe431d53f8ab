"""Tests of the audit file and of the reset."""
