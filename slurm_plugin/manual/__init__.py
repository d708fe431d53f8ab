"""The man pages, made from the commands and the configuration model: nothing in them is written twice."""
