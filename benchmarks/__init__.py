"""Side-by-side measurements. Each is one command and prints JSON last."""
