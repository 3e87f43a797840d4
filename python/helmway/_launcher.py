"""The console command `helmway`: finds the program and becomes it."""

import os
import pathlib
import sys

PACKAGED_BINARY = pathlib.Path(__file__).resolve().parent / "bin" / "helmway"


def binary() -> str:
    """Path of the helmway program: $HELMWAY_BINARY, else the packaged one. FileNotFoundError if there is none."""
    given = os.environ.get("HELMWAY_BINARY")
    path = pathlib.Path(given) if given else PACKAGED_BINARY
    if not os.access(path, os.X_OK) or not path.is_file():
        where = "HELMWAY_BINARY names" if given else "this installation of helmway should have"
        raise FileNotFoundError(
            f"{where} {path}, which is not a program. Build it (scripts/setup.sh in the source tree does) "
            "or set HELMWAY_BINARY."
        )
    return str(path)


def main() -> None:
    try:
        program = binary()
    except FileNotFoundError as error:
        sys.exit(f"helmway: {error}")
    os.execv(program, [program, *sys.argv[1:]])
