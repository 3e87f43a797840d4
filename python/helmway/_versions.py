"""Which versions of JAX work with this Helmway."""

import re

OLDEST = "0.10.2"
NEWEST = "0.12.0.1"


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "0.12.0.1rc2" is (0, 12, 0, 1)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()


def problem_with(package: str, version: str) -> str | None:
    """What to tell the user if this version of jax or jaxlib does not work, else None."""
    if _numbers(OLDEST) <= _numbers(version) <= _numbers(NEWEST):
        return None
    return (
        f"this Helmway works with {package} {OLDEST} to {NEWEST}, and {package} {version} is installed. "
        f"Install one that works, e.g. `pip install 'jax=={NEWEST}' 'jaxlib=={NEWEST}'` "
        f"(Python 3.12 or newer) or `pip install 'jax=={OLDEST}' 'jaxlib=={OLDEST}'` (Python 3.11 or newer)."
    )
