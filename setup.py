"""What setup.cfg can't say: lower the built-in policies, and hook editable installs too."""

import shutil
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).parent
# Build backends don't have the project's directory on sys.path. If a release is installed here, its
# hook has already imported that release, which must not lower this checkout's policies.
sys.path.insert(0, str(ROOT))
for name in [name for name in sys.modules if name.partition(".")[0] == "rocm_autopatch"]:
    del sys.modules[name]


class BuildPyWithPlans(build_py):
    """Writes the built-in policies as plans, so that a start has no YAML to read."""

    def run(self) -> None:
        # setuptools keeps build/lib: a module removed since the last build would be shipped again.
        shutil.rmtree(Path(self.build_lib, "rocm_autopatch"), ignore_errors=True)
        super().run()
        # An editable install reads policies/*.yaml at each start, so no plan can be out of date.
        if not self.editable_mode:
            for path, data in self._plans().items():
                Path(path).parent.mkdir(exist_ok=True)
                Path(path).write_bytes(data)

    def get_outputs(self, include_bytecode: Any = 1) -> "list[str]":
        outputs = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, *self._plans()]

    def _plans(self) -> "dict[str, bytes]":
        from rocm_autopatch import startup
        from rocm_autopatch.policy import builtin

        package = Path(self.build_lib, "rocm_autopatch")
        plans = dict(builtin.files())
        # A baked plan is checked against this: it serves only the package that made it.
        sources = [file.read_bytes() for file in sorted(package.rglob("*.py"))]
        plans["id"] = startup.digest(b"".join([*sources, *plans.values()])).hex().encode()
        return {str(package / "plans" / name): data for name, data in plans.items()}


class EditableWheelWithStartup(editable_wheel):
    """Adds the start-up files to the wheel of an editable install, which has no package data."""

    def run(self) -> None:
        super().run()
        (wheel,) = Path(self.dist_dir).glob("rocm_autopatch-*.whl")
        with ZipFile(wheel, "a") as archive:
            for name in ("rocm_autopatch.pth", "rocm_autopatch.start"):
                archive.write(ROOT / name, name)


setup(cmdclass={"build_py": BuildPyWithPlans, "editable_wheel": EditableWheelWithStartup})
