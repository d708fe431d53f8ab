"""Orders: which job comes first. Each is a small frozen dataclass with one method, `scores`."""
