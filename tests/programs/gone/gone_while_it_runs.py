"""What happens to the package of a process that has started, and has not imported torch."""

import glob
import os
import resource
import shutil
import sys

site, copy = sys.argv[1:3]
package = site + "/rocm_autopatch"
files = [p for p in glob.glob(package + "/**", recursive=True) if os.path.isfile(p)]


def deny(event, arguments):
    if event in ("open", "import") and "rocm_autopatch" in str(arguments[0]):
        raise PermissionError("denied")


def write_all(content):
    for file in files:
        with open(file, "wb") as stream:
            stream.write(content)


def uninstall():
    shutil.rmtree(package)
    os.unlink(site + "/rocm_autopatch.pth")


def move_away():
    sys.path.remove(site)
    sys.path.append(copy)


BETWEEN = {
    "removed": lambda: shutil.rmtree(package),
    "uninstalled": uninstall,
    "unreadable": lambda: os.chmod(package, 0),
    "unreadable files": lambda: [os.chmod(file, 0) for file in files],
    "another release": lambda: write_all(b""),
    "another release that fails": lambda: write_all(b"raise RuntimeError"),
    "damaged": lambda: write_all(bytes(99)),
    "no more descriptors": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)),
    "denied": lambda: sys.addaudithook(deny),
    "off sys.path": move_away,
}
BETWEEN[sys.argv[3]]()
for name in ("torch", "torch", "json"):
    try:
        module = __import__(name)
        print(module.__spec__.name, sorted(name for name in sys.modules if name[:5] == "torch"))
    except (ImportError, OSError) as error:
        print(error)
