"""Find the fastest policy for a program: the parts of ``rocm-autopatch tune``.

``candidates`` says what there is to try, ``search`` which sets of switches are measured next,
``session`` measures them, ``same`` compares their results with the base's, ``tuning`` is all of it
from the request on.
"""
