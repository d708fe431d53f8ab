"""`sexplschedd`: the program of the daemon.

To import the modules of the daemon takes most of its start. So that is done once signals to reload, and to reopen the
log, are blocked: before, they would end the process.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click

from explsched import log
from explsched.cli import alternative, program_options, run_command

_EPILOG = """\
SIGHUP reloads the configuration; an invalid file leaves the running one in force. SIGUSR2 reopens the log. SIGTERM
and SIGINT stop after the current pass. Without the daemon, Slurm continues with the last order. One daemon at a
time steers a cluster: a second one names the first (host, pid, since when) and ends.

--once waits for jobs that it has asked to save, for their grace period at most. The limits on preemption need the
daemon: what was asked in vain, or refused, is not known to the next --once.

\b
exit status: 0 after a stop or a pass; 1 if it cannot start, if another daemon steers,
or if Slurm refused a change of --once; 2 for wrong usage.

\b
examples:
  sexplschedd --dry-run
  sexplschedd --config /etc/explsched/explsched.yaml --log-file /var/log/explsched/sexplschedd.log

\b
environment:
  SEXPLSCHED_CONFIG  configuration file, if --config is not given

\b
files:
  /etc/explsched/explsched.yaml          configuration
  /etc/default/sexplschedd               environment of the service, such as PATH and SLURM_CONF
  /var/spool/explsched/progress          where jobs report
  /var/log/explsched/sexplschedd.log     log of the service
"""


@click.command(epilog=_EPILOG)
@click.option("-f", "--config", "config_path", type=click.Path(path_type=Path), help="Configuration file.")
@alternative("--once", "mode", "once", "Make one pass, finish its preemptions and exit (1 if Slurm refused a change).")
@alternative("--dry-run", "mode", "dry-run", "Print what one pass would change, change nothing.")
@alternative(
    "--serve-state",
    "mode",
    "serve-state",
    "Do not steer: serve the state that a daemon on another host publishes to the users of this one.",
)
@click.option("--log-file", help="Append the log to this file instead of standard error.")
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
)
@program_options
def command(config_path: Path | None, mode: str | None, log_file: str | None, log_level: str) -> None:
    """Steer Slurm by the configured policy: site factors, short reservations, preemption of jobs that opted in."""
    if mode is None:  # until `Daemon.run` is ready for them
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR2))
    log.set_up(log_level, log_file)
    if mode == "serve-state":
        from slurm_plugin import config as configuration
        from slurm_plugin.state import serving

        state = configuration.load(config_path).state
        command_line = serving.argv(state.directory, state.socket)
        os.execv(command_line[0], command_line)  # noqa: S606  what serves needs neither numpy nor policies
    from slurm_plugin.loop import Daemon

    daemon = Daemon(config_path, log_level, log_file)
    if mode == "once":
        sys.exit(daemon.once())
    if mode == "dry-run":
        click.echo(daemon.dry_run() or "nothing to change")
        return
    daemon.run()


def main() -> None:
    """Entry point of `sexplschedd`."""
    run_command(command, "sexplschedd")


if __name__ == "__main__":
    main()
