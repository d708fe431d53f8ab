"""What a machine gets besides the commands: service, user, spool, log rotation, manual, completion, example."""
