"""Groups on one GPU under fire: members, kernel managers and the daemon are killed at random moments."""
