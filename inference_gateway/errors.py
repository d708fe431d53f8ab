"""The errors of the gateway.

GatewayError
├── SettingsError          a setting of the data plane cannot be used
├── DataPlaneError         HAProxy cannot do what was asked
│   ├── NotRunningError        its socket is gone, or does not answer in time
│   ├── RefusedError           it answered a command with an error
│   └── StartError             it does not start: the port is taken, the configuration is wrong, it is not installed
├── MetricsError           the metrics of a replica's server cannot be read
├── ActivatorError         the activator cannot be started or reached
└── ScalingError           a scaling rule or one of its options is not usable (`inference_gateway.scaling`)
"""

from __future__ import annotations

from explsched.errors import ExplschedError


class GatewayError(ExplschedError):
    """The inference gateway cannot do what was asked."""


class SettingsError(GatewayError):
    """A setting is not usable. The message names it, what was found and what is accepted."""


class DataPlaneError(GatewayError):
    """The data plane cannot do what was asked."""


class NotRunningError(DataPlaneError):
    """The data plane's socket is gone, or does not answer in time."""


class RefusedError(DataPlaneError):
    """The data plane answered a command with an error."""


class StartError(DataPlaneError):
    """The data plane does not start: its port is taken, its configuration is wrong, or it is not installed."""


class MetricsError(GatewayError):
    """The metrics of a replica's server cannot be read, or contain nothing that can be used."""


class ActivatorError(GatewayError):
    """The activator cannot be started or reached."""
