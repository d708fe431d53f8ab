"""Job scripts as Jinja2 templates, rendered by `sxbatch --template`."""
