"""The rows of the catalogue, by family. A family is imported when one of its policies is asked for."""
