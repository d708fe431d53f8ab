"""All pages: of every command that the package installs, and of the configuration file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import metadata

from explsched.job_options import CHECKPOINT, OPTIONS, SWEEP, Option
from explsched.job_options.comment import PREFIX
from explsched.job_options.documentation import former_spellings
from explsched.job_options.table import SPANK_PREFIX, VARIABLE_PREFIX
from slurm_plugin import config_keys
from slurm_plugin.config import DEFAULT_PATH, PATH_VARIABLE
from slurm_plugin.manual import from_argparse, from_click, roff
from slurm_plugin.manual.commands import DISTRIBUTION, commands
from slurm_plugin.manual.page import Entry, Page

_DAEMONS = ("sexplschedd",)


def pages() -> Iterator[Page]:
    """Every page: section 1 for commands, 5 for the configuration file, 8 for daemons."""
    found = commands()
    see_also = tuple(f"{name}({_section(name)})" for name in sorted(found))
    for name, command in found.items():
        if isinstance(command, argparse.ArgumentParser):
            others = tuple(other for other in see_also if not other.startswith(f"{name}("))
            yield from_argparse.page(command, _section(name), others)
        else:
            yield from from_click.pages(name, command, _section(name))
    yield _configuration_page(see_also)
    yield _job_options_page()


def render_all() -> dict[str, str]:
    """The source of every page by its file name."""
    version = metadata.version(DISTRIBUTION)
    return {page.file_name: roff.render(page, version) for page in pages()}


def _section(name: str) -> int:
    return 8 if name in _DAEMONS else 1


def _job_options_page() -> Page:
    sweep, checkpoint = SWEEP.name, CHECKPOINT.name
    return Page(
        "explsched-options",
        7,
        "what a job can tell explsched",
        description="Each option has one name. On the command line it is `--NAME` of `sxbatch`, some are options"
        f" of `sxrun`, too, and `--{SPANK_PREFIX}NAME` of `sbatch`, `srun` and `salloc` where the site has the SPANK"
        f" plugin. In the environment it is `{VARIABLE_PREFIX}NAME`, in capitals and with `_` for `-`. In the job's"
        f" comment it is a key of the word `{PREFIX}NAME=VALUE&NAME=VALUE`, values URL-encoded. The command line"
        " counts first, then the environment, then #SXBATCH lines of the script. Inside a job the variables are that"
        " job's own: a job that it submits does not inherit its permissions.",
        options=tuple(_job_option(option) for option in OPTIONS),
        examples=f"sxbatch --{sweep} digits --{checkpoint} USR1 train.sh\n"
        f"sbatch --{SPANK_PREFIX}{sweep}=digits --{SPANK_PREFIX}{checkpoint}=USR1 train.sh\n"
        f'sbatch --requeue --comment="{PREFIX}{sweep}=digits&{checkpoint}=USR1" train.sh',
        see_also=("sxbatch(1)", "sxrun(1)", "sbatch(1)"),
    )


def _job_option(option: Option) -> Entry:
    former = former_spellings(option)
    text = f"{option.help[:1].upper()}{option.help[1:]}. Accepted: {option.kind.accepted}."
    return Entry(option.name, f"{text} Formerly {', '.join(former)}." if former else text)


def _configuration_page(see_also: tuple[str, ...]) -> Page:
    meanings = config_keys.section_meanings()
    return Page(
        "explsched.yaml",
        5,
        "configuration of explsched",
        description=f"YAML, read by `sexplschedd` and by `sexplsched` from the file given with --config, else from the"
        f" one that the variable {PATH_VARIABLE} names, else from {DEFAULT_PATH}. Every key is optional; an unknown key"
        " or a wrong value is an error, and a running daemon that is told to reload such a file keeps what it has."
        " Keys in dots stand in sections: `slurm.client` is the key `client` of the mapping `slurm`.\n\n"
        "The sections:\n\n" + "\n\n".join(f"`{name}`: {meaning}" for name, meaning in meanings.items()),
        entries=tuple(
            Entry(key.name, f"{key.meaning}. Accepted: {key.accepted}. Default: {key.default}")
            for key in config_keys.all_keys()
        ),
        entries_title="KEYS",
        variables=(Entry(PATH_VARIABLE, f"The file to read instead of {DEFAULT_PATH}."),),
        examples="policy: srsf\nslurm:\n  partitions: [gpu]\npreemption:\n  most_per_hour: 50",
        files=(Entry(str(DEFAULT_PATH), "The file."),),
        see_also=see_also,
    )
