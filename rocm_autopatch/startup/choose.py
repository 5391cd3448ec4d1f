"""Which plan, where an image or a policy is named, or a site has policies."""

import os

from rocm_autopatch import _DEFAULT, _HERE, _RECORD, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from rocm_autopatch.plan import Plan


def choose(
    facts: "dict[str, tuple[str, str]]", site: "list[str]", first: bool = True
) -> "Optional[Plan]":
    """The plan for these facts: a built-in one if that is enough, else one lowered from YAML here.

    *site* are the names in /etc/rocm-autopatch. It is not the *first* call if what
    ROCM_AUTOPATCH_POLICY names is not there.
    """
    if first and b"ROCM_AUTOPATCH_SITE" in os.environ._data:  # type: ignore[attr-defined]
        from rocm_autopatch.startup import named_sites

        if not named_sites.add(facts, site):
            return None
    # What is proven is not known when the plans in the wheel are made.
    policy, own = "", "proven" in facts or "gains" in facts
    for name in site:
        own = own or name.endswith(".yaml")
    if first and b"ROCM_AUTOPATCH_POLICY" in os.environ._data:  # type: ignore[attr-defined]
        from rocm_autopatch import trust

        policy = trust.named("ROCM_AUTOPATCH_POLICY")
        own = own or trust.is_path(policy)
    image = facts.get("image", ("",))[0]
    chosen = _chosen(image) if image else ""
    if policy:
        _RECORD["reason"] = "ROCM_AUTOPATCH_POLICY=%s" % policy
    elif chosen:
        _RECORD["reason"] = "images.yaml lists %s" % image
    else:
        _RECORD["reason"] = "%s, so the default policy for ROCm applies: %s" % (
            "images.yaml does not list %s" % image if image else "no image is named",
            _DEFAULT,
        )
    # A built-in plan stands on the default policy alone, without layers of a record or a site.
    own = own or (policy != "" and chosen not in ("", _DEFAULT))
    plan: Optional[Plan] = None
    if not own and "evidence" not in site:
        plan = startup.load("%s/plans/%s.plan" % (_HERE, policy or chosen or _DEFAULT))
    if plan is None and policy:
        from rocm_autopatch.startup import misnamed

        if not misnamed.find_policy(startup.fail):
            return choose(facts, site, False)
    if plan is None and not own and "evidence" in site:
        from rocm_autopatch.startup import proofs

        plan = _lower(policy, needed=False) if proofs.any_file() else None
        if plan is None:
            plan = startup.load("%s/plans/%s.plan" % (_HERE, policy or chosen or _DEFAULT))
    if plan is None and policy and not own and os.path.isdir(_HERE + "/plans"):
        misnamed.refuse_plan(policy, startup.fail)
        return None
    # A checkout or an editable install has no plans, so none can go stale.
    return _lower(policy) if plan is None else plan


def _chosen(image: str) -> str:
    """The name of the plan that images.yaml has for an image, "" if none."""
    images: Any = startup.load(_HERE + "/plans/images.index") or {}
    reference = image.partition("@")[0]
    if reference.startswith("docker.io/"):
        reference = reference[len("docker.io/") :]
    name: str = images.get(reference) or images.get(_without_registry(reference), "")
    return name


def _without_registry(image: str) -> str:
    """The reference without its registry: in a mirror it is the same image."""
    host, slash, rest = image.partition("/")
    return rest if slash and ("." in host or ":" in host or host == "localhost") else image


def _lower(policy: str, needed: bool = True) -> "Optional[Plan]":
    from rocm_autopatch.startup import from_yaml

    return from_yaml.lower(policy, needed)
