"""The control plane: decides how many replicas a service has, and keeps Slurm and the data plane in line.

Never on the data path: when it dies, requests go on as the data plane has them, and its successor takes over.
"""
