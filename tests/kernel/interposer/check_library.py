"""What the interposer may bring into a foreign program: its exports, its dependencies, no constructors.

Usage: check_library.py LIBRARY LIST MACRO OTHER

LIBRARY must export the names in rows "MACRO(name" of the file LIST, and OTHER, and nothing else.
"""

import re
import subprocess
import sys
from pathlib import Path

OLDEST_GLIBC = (2, 17)


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(library: str) -> set[str]:
    """Names of the defined dynamic symbols, with their versions if they have any."""
    lines = output_of("nm", "--dynamic", "--defined-only", library).splitlines()
    return {line.split()[-1] for line in lines}


def listed(rows: Path, macro: str) -> set[str]:
    return set(re.findall(rf"^(?:{macro}\(|RENAMED\(\w+, \d+, )(\w+)", rows.read_text(), flags=re.MULTILINE))


def needed(library: str) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", output_of("readelf", "--dynamic", "--wide", library))


def constructors(library: str) -> int:
    """Entries of the array of constructors beyond the compiler's own, which every library has."""
    size = re.search(r"\(INIT_ARRAYSZ\)\s+(\d+)", output_of("readelf", "--dynamic", "--wide", library))
    return 0 if size is None else int(size.group(1)) // 8 - 1


def glibc(library: str) -> tuple[int, ...]:
    """The oldest that has all it asks for."""
    asked = re.findall(r"@GLIBC_([\d.]+)", output_of("nm", "--dynamic", "--undefined-only", library))
    return max(tuple(map(int, version.split("."))) for version in asked)


def problems(library: str, expected: set[str]) -> list[str]:
    found = []
    if exported(library) != expected:
        found.append(f"exports more or less than listed: {sorted(exported(library) ^ expected)}")
    libraries = [name for name in needed(library) if not name.startswith(("libc.so", "ld-linux"))]
    if libraries:
        found.append(f"needs {libraries}; only the C library is allowed")
    if "dlsym" in expected and glibc(library) > OLDEST_GLIBC:
        found.append(f"asks for glibc {glibc(library)}, which images may not have: see interposer/old_glibc.h")
    if constructors(library) != 0:
        found.append(f"has {constructors(library)} constructors")
    undefined = output_of("nm", "--dynamic", "--undefined-only", library)
    if "dlsym" in expected and re.search(r"\bdlsym\b", undefined):
        found.append("refers to dlsym, which would be its own")
    if re.search(r"__tls_get_addr", undefined):
        found.append("uses thread-local storage that may be allocated at first use")
    return found


def main() -> None:
    library, rows, macro, other = sys.argv[1:]
    found = problems(library, listed(Path(rows), macro) | {other})
    if found:
        sys.exit("\n".join(f"{library}: {problem}" for problem in found))


if __name__ == "__main__":
    main()
