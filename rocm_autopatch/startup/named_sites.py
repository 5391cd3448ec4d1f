"""The directories of policies that a variable names, at a start that looks for policies."""

from rocm_autopatch import _RECORD, policy_dirs, startup
from rocm_autopatch.startup import image_file


def add(facts: "dict[str, tuple[str, str]]", site: "list[str]") -> bool:
    """Add what is in the directories to the names in *site*, and the image's name to *facts*.

    False if a directory can't be read. Then nothing is applied: somebody chose the policies in it
    for a reason.
    """
    found, left_out, wrong = policy_dirs.read_sites()
    if wrong:
        _RECORD["reason"] = "the policies of a site can't be read, see errors"
        startup.fail("policy", "no policy is applied: " + wrong)
        return False
    if left_out:
        from rocm_autopatch.startup import misnamed

        misnamed.without_sites(left_out, startup.fail)
    more = [name for _, names in found for name in names]
    site += more
    if "image" in more and "image" not in facts:
        image_file.read(facts, [directory for directory, _ in found[::-1]])
    return True
