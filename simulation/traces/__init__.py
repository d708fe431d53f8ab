"""Job traces: model, formats, checks, generators."""
