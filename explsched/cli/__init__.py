"""What every command shares: the root command, options, progress bars."""
