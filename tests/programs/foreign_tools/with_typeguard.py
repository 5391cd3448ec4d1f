"""typeguard instruments the program."""

from typeguard import install_import_hook

install_import_hook(["program"])
import program

program.main()
try:
    program.note(1)
except Exception as error:
    print(type(error), error)
