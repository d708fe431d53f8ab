"""Everything that runs inside a user's job, and `sxbatch`, which submits it.

Standard library only, and nothing of ours: it must start fast and work in any Python a job may have. (`sxbatch` loads
Jinja2 when, and only when, a template is asked for.)
"""
