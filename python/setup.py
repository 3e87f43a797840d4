"""Puts the built `helmway` binary into the wheel; everything else is in pyproject.toml.

The binary is taken from $HELMWAY_BINARY, else from build/release of this repository. Intermediate files go to
build/python of the repository, so that building leaves nothing in the source tree.
"""

import os
import pathlib
import shutil

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_HERE = pathlib.Path(__file__).resolve().parent
_BUILD = _HERE.parent / "build"


def _binary() -> pathlib.Path:
    given = os.environ.get("HELMWAY_BINARY")
    path = pathlib.Path(given) if given else _BUILD / "release" / "helmway" / "apps" / "helmway"
    if not path.is_file():
        raise SystemExit(
            f"helmway: there is no binary at {path}. Build it with `cmake --preset release && cmake --build "
            "--preset release --target helmway`, or name another one in HELMWAY_BINARY."
        )
    return path


class BuildWithBinary(build_py):
    def run(self):
        super().run()
        if self.editable_mode:
            return  # the launcher then looks for HELMWAY_BINARY
        target = pathlib.Path(self.build_lib) / "helmway" / "bin" / "helmway"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_binary(), target)
        target.chmod(0o755)


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on this platform: the binary links no Python."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


(_BUILD / "python").mkdir(parents=True, exist_ok=True)
setup(
    cmdclass={"build_py": BuildWithBinary, "bdist_wheel": PlatformWheel},
    options={
        "build": {"build_base": str(_BUILD / "python")},
        "egg_info": {"egg_base": str(_BUILD / "python")},
    },
)
