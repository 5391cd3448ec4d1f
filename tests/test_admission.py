"""deploy/kubernetes: which Pods get the hook, how they look then, and that programs are hooked.

tests/admission.py evaluates the policies by Google's CEL. No API server and no kubelet is here.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonpatch
import kubernetes_validate
import pytest
import yaml
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional

from tests.admission import (
    IMAGE,
    INJECT,
    PLACE,
    VARIANTS,
    Json,
    Policy,
    containers,
    documents,
    environment,
    literals,
    parameters,
    patch_type,
    selects,
    shipped,
)
from tests.conftest import (
    HIP,
    MAX,
    ROOT,
    SEEN,
    Interpreter,
    find_python,
    label_torch,
    make_hooked,
    make_venv,
    pip,
)
from tests.names import GIVEN

AT = "/opt/rocm-autopatch"
HOOK = "rocm-autopatch-hook"
POLICIES = "rocm-autopatch-policies"
MARKS = ("rocm-autopatch/injected", "rocm-autopatch/left-out")
policy = cache(Policy)
each_variant = pytest.mark.parametrize("variant", VARIANTS)
# Which containers of the Pods in tests/data/pods.yaml ask for a GPU.
ASKS = {
    "sglang": ["server"],
    "vllm": ["vllm"],
    "kuberay": ["ray-worker"],
    "jobset": ["trainer"],
    "leaderworkerset": ["worker"],
    "kubeflow": ["warm-caches", "pytorch"],
}
each_pod = pytest.mark.parametrize("maker", ASKS)


def made(maker: str) -> Json:
    """A new copy of a Pod of tests/data/pods.yaml, by the name of what makes it."""
    documents = yaml.safe_load_all((ROOT / "tests/data/pods.yaml").read_text())
    found: Json = dict(zip(ASKS, documents))[maker]
    return found


def pod(*env: Json, **fields: Any) -> Json:
    """A Pod with one container that asks for a GPU; *fields* are the container's."""
    container = {
        "name": "model",
        "image": "rocm/pytorch:latest",
        "resources": {"limits": {"amd.com/gpu": "1"}},
        **fields,
    }
    if env:
        container["env"] = list(env)
    metadata = {"name": "one", "namespace": "serving"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container]},
    }


def given(**data: str) -> Json:
    """The ConfigMap, with other values."""
    changed = parameters()
    changed["data"].update(data)
    return changed


def marks(admitted: Json) -> tuple[str | None, ...]:
    annotations = admitted["metadata"].get("annotations", {})
    return tuple(annotations.get(name) for name in MARKS)


def without_us(admitted: Json) -> Json:
    """A Pod without what we add, and without variables. What is missing is empty here."""
    left = copy.deepcopy(admitted)
    spec = left["spec"]
    annotations = left["metadata"].setdefault("annotations", {})
    for name in MARKS:
        annotations.pop(name, None)
    for kind in ("initContainers", "volumes"):
        spec[kind] = [row for row in spec.get(kind, []) if row["name"] != HOOK]
    for container in containers(left).values():
        mounts = container.get("volumeMounts", [])
        container["volumeMounts"] = [row for row in mounts if row["name"] != HOOK]
        container.pop("env", None)
    return left


# Which Pods, and how


@each_variant
@each_pod
def test_who_asks_for_a_gpu_gets_the_hook(variant: str, maker: str) -> None:
    original = made(maker)
    admitted = policy(variant).admit(original)
    assert without_us(original) == without_us(admitted)
    before = containers(original)
    hooked = []
    for name, container in containers(admitted).items():
        mounts = [row for row in container.get("volumeMounts", []) if row["name"] == HOOK]
        if name == HOOK:
            continue
        if not mounts:
            assert container == before[name]
            continue
        hooked.append(name)
        assert mounts == [{"name": HOOK, "mountPath": AT, "readOnly": True}]
        env = environment(container)
        own = environment(before[name])
        chained = own.get("PYTHONPATH")
        expected = {
            "PYTHONPATH": f"{AT}:{chained}" if chained else AT,
            "ROCM_AUTOPATCH_IMAGE": own.get("ROCM_AUTOPATCH_IMAGE", container["image"]),
        }
        named = [row["name"] for row in before[name].get("env", [])]
        named = [one for one in named if not one.startswith(("ROCM_AUTOPATCH", "PYTHONPATH"))]
        if named:
            expected["ROCM_AUTOPATCH_GIVEN"] = ",".join(named)
        assert env == {**own, **expected}
        # Each variable is there once, and the Pod's own keep their order: one may use another.
        names = [row["name"] for row in container["env"]]
        assert len(names) == len(set(names))
        kept = [row["name"] for row in before[name].get("env", [])]
        assert names[: len(kept)] == kept
    assert hooked == ASKS[maker]
    assert sorted((marks(admitted)[0] or "").split(", ")) == sorted(hooked)
    assert marks(admitted)[1] is None


@each_variant
@each_pod
def test_kubernetes_takes_the_pods(variant: str, maker: str) -> None:
    original = made(maker)
    kubernetes_validate.validate(original, "1.36", strict=True)
    kubernetes_validate.validate(policy(variant).admit(original), "1.36", strict=True)


def find_kubectl() -> str:
    """Where it is. Skips the test if it is not installed."""
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("kubectl is not installed")
    return found


def page_block(page: str, words: str) -> str:
    """A block of a page in docs/, by its language and the word after it."""
    text = (ROOT / f"docs/{page}.md").read_text()
    (block,) = re.findall(rf"^ *```{words}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return textwrap.dedent(block)


@pytest.mark.parametrize("variant", ["image-volume", "kyverno"])
def test_the_image_is_the_volume(variant: str) -> None:
    admitted = policy(variant).admit(pod(), given(image="r.example/hook@sha256:12"))
    reference = {"reference": "r.example/hook@sha256:12", "pullPolicy": "IfNotPresent"}
    assert admitted["spec"]["volumes"] == [{"name": HOOK, "image": reference}]
    assert "initContainers" not in admitted["spec"]


@each_pod
def test_the_init_container_comes_first(maker: str) -> None:
    original = made(maker)
    config = given(image="r.example/hook@sha256:12", mountPath="/hook-is-here")
    admitted = policy("init-container").admit(original, config)
    first, *others = admitted["spec"]["initContainers"]
    assert [row["name"] for row in others] == [
        row["name"] for row in original["spec"].get("initContainers", [])
    ]
    assert first["name"] == HOOK
    assert first["image"] == "r.example/hook@sha256:12"
    assert first["command"] == ["cp", "-R", "/hook/.", "/hook-is-here"]
    assert first["volumeMounts"] == [{"name": HOOK, "mountPath": "/hook-is-here"}]
    assert {"name": HOOK, "emptyDir": {"sizeLimit": "64Mi"}} in admitted["spec"]["volumes"]


@pytest.mark.parametrize("kind", ["limits", "requests"])
@pytest.mark.parametrize("asked", [{}, {"cpu": "16", "memory": "128Gi"}, {"memory": "8Gi"}])
def test_the_init_container_asks_for_what_its_neighbour_has(kind: str, asked: Json) -> None:
    """So a LimitRange and a quota that take the Pod take it with us, and its class stays."""
    resources = {"limits": {"amd.com/gpu": "1"}, "requests": {"amd.com/gpu": "1"}}
    resources[kind] = {**resources[kind], **asked}
    (first,) = policy("init-container").admit(pod(resources=resources))["spec"]["initContainers"]
    other = "requests" if kind == "limits" else "limits"
    assert first["resources"] == {kind: asked, other: {}}


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        # The image's own, or the one that OpenShift picks from the namespace's range.
        (None, None),
        # The Pod's.
        (1000, None),
        # It would be inherited, and runAsNonRoot refuses it.
        (0, 65534),
    ],
)
def test_the_init_container_s_user(user: int | None, expected: int | None) -> None:
    original = pod()
    if user is not None:
        original["spec"]["securityContext"] = {"runAsUser": user}
    admitted = policy("init-container").admit(original)
    kubernetes_validate.validate(admitted, "1.36", strict=True)
    context = admitted["spec"]["initContainers"][0]["securityContext"]
    assert context.pop("runAsUser", None) == expected
    # What the profile "restricted" of Pod Security asks for.
    assert context == {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    # runAsNonRoot needs a number where nobody else gives one.
    assert "\nUSER 65534:65534\n" in (ROOT / "deploy/image/Containerfile").read_text() + "\n"


@each_variant
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ([], AT),
        ([{"name": "OTHER", "value": "1"}], AT),
        ([{"name": "PYTHONPATH"}], AT),
        ([{"name": "PYTHONPATH", "value": ""}], AT),
        ([{"name": "PYTHONPATH", "value": "/a"}], f"{AT}:/a"),
        ([{"name": "PYTHONPATH", "value": "/a:/b:"}], f"{AT}:/a:/b:"),
        ([{"name": "PYTHONPATH", "value": "$(HOME)/a"}], f"{AT}:$(HOME)/a"),
        # The last one counts.
        (
            [{"name": "PYTHONPATH", "value": "/a"}, {"name": "PYTHONPATH", "value": "/b"}],
            f"{AT}:/b",
        ),
    ],
)
def test_pythonpath(variant: str, env: list[Json], expected: str) -> None:
    (container,) = policy(variant).admit(pod(*env))["spec"]["containers"]
    assert environment(container)["PYTHONPATH"] == expected


@each_variant
def test_a_pythonpath_that_can_t_be_read(variant: str) -> None:
    source = {"configMapKeyRef": {"name": "paths", "key": "python"}}
    original = pod({"name": "PYTHONPATH", "valueFrom": source})
    admitted = policy(variant).admit(original)
    why = "model: its PYTHONPATH has a valueFrom, which can't be read here"
    assert marks(admitted) == (None, why)
    assert admitted["spec"] == original["spec"]
    # Its neighbour gets the hook.
    original["spec"]["containers"].append({**pod()["spec"]["containers"][0], "name": "second"})
    admitted = policy(variant).admit(original)
    assert marks(admitted) == ("second", why)
    first, second = admitted["spec"]["containers"]
    assert first == original["spec"]["containers"][0]
    assert environment(second)["PYTHONPATH"] == AT


ZIPS = ("/usr/lib/python310.zip", "/opt/conda/lib/python312.zip")


@each_variant
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        # What the image sets, admission can't see: so nothing takes its place.
        ([], None),
        ([{"name": "OTHER", "value": "1"}], None),
        # The Pod has taken its place already.
        ([{"name": "PYTHONPATH", "value": ""}], AT),
        ([{"name": "PYTHONPATH", "value": "/a"}], f"{AT}:/a"),
    ],
)
def test_beside_the_standard_library(variant: str, env: list[Json], expected: str | None) -> None:
    config = given(pythonZips="  ".join(ZIPS))
    admitted = policy(variant).admit(pod(*env), config)
    (container,) = admitted["spec"]["containers"]
    assert environment(container).get("PYTHONPATH") == expected
    assert container["volumeMounts"] == [
        {"name": HOOK, "mountPath": path, "readOnly": True} for path in (AT, *ZIPS)
    ]
    kubernetes_validate.validate(admitted, "1.36", strict=True)
    assert policy(variant).admit(admitted, config) == admitted


@each_variant
def test_a_pythonpath_that_can_t_be_read_is_left_alone(variant: str) -> None:
    source = {"configMapKeyRef": {"name": "paths", "key": "python"}}
    original = pod({"name": "PYTHONPATH", "valueFrom": source})
    admitted = policy(variant).admit(original, given(pythonZips=ZIPS[0]))
    assert marks(admitted) == ("model", None)
    (container,) = admitted["spec"]["containers"]
    assert container["env"][0] == {"name": "PYTHONPATH", "valueFrom": source}
    assert [row["name"] for row in container["env"]] == ["PYTHONPATH", "ROCM_AUTOPATCH_IMAGE"]


@each_variant
def test_a_zip_that_is_there(variant: str) -> None:
    original = pod(volumeMounts=[{"name": "own", "mountPath": ZIPS[1]}])
    original["spec"]["volumes"] = [{"name": "own", "emptyDir": {}}]
    admitted = policy(variant).admit(original, given(pythonZips=" ".join(ZIPS)))
    assert marks(admitted) == (None, f"model: something else is mounted at {ZIPS[1]}")
    assert admitted["spec"] == original["spec"]


@each_variant
@pytest.mark.parametrize("zips", ["", ZIPS[0]])
@pytest.mark.parametrize(
    "place",
    [
        AT,
        f"{AT}/",
        # The mount point would be made in this volume, or could not be.
        "/opt",
        "/opt/",
        "//opt/.",
        "/",
        # There is no mount point for it in the image.
        f"{AT}/site",
        # Nobody here knows where links lead, so nobody goes up.
        "/srv/../opt",
    ],
)
def test_something_else_is_mounted_there(variant: str, zips: str, place: str) -> None:
    original = pod(volumeMounts=[{"name": "own", "mountPath": place}])
    original["spec"]["volumes"] = [{"name": "own", "emptyDir": {}}]
    admitted = policy(variant).admit(original, given(pythonZips=zips))
    assert marks(admitted) == (None, f"model: something else is mounted at {place}")
    assert admitted["spec"] == original["spec"]


@each_variant
@pytest.mark.parametrize("place", ["/usr", "/usr/lib", ZIPS[0], f"{ZIPS[0]}/a"])
def test_something_else_is_mounted_at_a_zip(variant: str, place: str) -> None:
    original = pod(volumeMounts=[{"name": "own", "mountPath": place}])
    original["spec"]["volumes"] = [{"name": "own", "hostPath": {"path": "/usr"}}]
    admitted = policy(variant).admit(original, given(pythonZips=" ".join(ZIPS)))
    assert marks(admitted) == (None, f"model: something else is mounted at {place}")
    assert admitted["spec"] == original["spec"]
    # That is nobody's way without zips.
    assert marks(policy(variant).admit(original)) == ("model", None)


@each_variant
@pytest.mark.parametrize(
    "place", ["/opt/rocm", "/opt/rocm-autopatch-2", "/op", "/srv/opt", "/a..b"]
)
def test_a_mount_that_is_in_nobody_s_way(variant: str, place: str) -> None:
    original = pod(volumeMounts=[{"name": "own", "mountPath": place}])
    original["spec"]["volumes"] = [{"name": "own", "emptyDir": {}}]
    assert marks(policy(variant).admit(original)) == ("model", None)


# Values that people may have in the parameters


@each_variant
@pytest.mark.parametrize(
    ("changes", "mounted"),
    [
        ({"image": f"{IMAGE}\n"}, [AT]),
        ({"mountPath": f" {AT}\n"}, [AT]),
        ({"mountPath": f"{AT}/"}, [AT]),
        ({"mountPath": "//opt//rocm-autopatch//"}, [AT]),
        # Debian's Python in two images.
        ({"pythonZips": f"{ZIPS[0]} {ZIPS[1]} {ZIPS[0]}"}, [AT, *ZIPS]),
        # A YAML block.
        ({"pythonZips": f"{ZIPS[0]}\n{ZIPS[1]}\n"}, [AT, *ZIPS]),
        ({"pythonZips": f"\t{ZIPS[0]}\r\n{ZIPS[1]}"}, [AT, *ZIPS]),
        ({"pythonZips": "\n"}, [AT]),
        ({"resources": "amd.com/cpx_nps4\namd.com/gpu\n"}, [AT]),
        ({"resources": "\tamd.com/gpu"}, [AT]),
        ({"namespacePolicies": "policies\n"}, [AT, f"{AT}-policies"]),
        ({"namespacePolicies": " "}, [AT]),
    ],
)
def test_white_space_in_the_parameters(
    variant: str, changes: dict[str, str], mounted: list[str]
) -> None:
    config = given(**changes)
    admitted = policy(variant).admit(pod(), config)
    assert marks(admitted) == ("model", None)
    (container,) = admitted["spec"]["containers"]
    assert [row["mountPath"] for row in container["volumeMounts"]] == mounted
    assert f'"{IMAGE}"' in json.dumps(admitted)
    kubernetes_validate.validate(admitted, "1.36", strict=True)
    assert policy(variant).admit(admitted, config) == admitted


@each_variant
def test_white_space_around_a_variable_s_value(variant: str) -> None:
    config = given(ROCM_AUTOPATCH="observe\n", ROCM_AUTOPATCH_SITE=" /a:/b\n")
    env = environment(policy(variant).admit(pod(), config)["spec"]["containers"][0])
    assert (env["ROCM_AUTOPATCH"], env["ROCM_AUTOPATCH_SITE"]) == ("observe", "/a:/b")


PATH_IS_WRONG = "the mountPath of the parameters is no usable path: "
ZIP_IS_WRONG = "the pythonZips of the parameters have no usable path: "


@each_variant
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"image": "r.example/hook r.example/other"},
            "the image of the parameters is no name of an image",
        ),
        (
            {"image": "r.example/hook\n@sha256:12"},
            "the image of the parameters is no name of an image",
        ),
        ({"image": "<image>"}, "the image of the parameters is no name of an image"),
        *(
            ({"mountPath": path}, f"{PATH_IS_WRONG}{path}".rstrip("\n"))
            for path in (
                "",
                "/",
                "opt/rocm-autopatch",
                f"{AT}:/other",
                f"{AT} /other",
                "/opt/../rocm-autopatch",
                "/opt/$(NAME)",
                "C:\\hook",
                # Their containers would lack what is there.
                "/opt",
                "/usr/lib/",
                "/proc/hook",
            )
        ),
        ({"pythonZips": f"{ZIPS[0]} a.zip"}, f"{ZIP_IS_WRONG}a.zip"),
        ({"pythonZips": f"{ZIPS[0]}:{ZIPS[1]}"}, f"{ZIP_IS_WRONG}{ZIPS[0]}:{ZIPS[1]}"),
        ({"pythonZips": f"{ZIPS[0]},{ZIPS[1]}"}, f"{ZIP_IS_WRONG}{ZIPS[0]},{ZIPS[1]}"),
        # The standard library itself.
        ({"pythonZips": "/usr/lib/python3.10"}, f"{ZIP_IS_WRONG}/usr/lib/python3.10"),
        ({"pythonZips": f"{AT}/python310.zip"}, "a path of the parameters lies in another one"),
        (
            {"pythonZips": " ".join(f"/{number}.zip" for number in range(33))},
            "the pythonZips of the parameters are more than 32",
        ),
        (
            {"namespacePolicies": "a b"},
            "the namespacePolicies of the parameters are no name of a ConfigMap",
        ),
    ],
)
def test_what_no_pod_could_start_with(variant: str, changes: dict[str, str], why: str) -> None:
    original = pod()
    config = given(**changes)
    admitted = policy(variant).admit(original, config)
    assert admitted["spec"] == original["spec"]
    assert marks(admitted) == (None, f"model: {why}")
    kubernetes_validate.validate(admitted, "1.36", strict=True)
    # Other Pods hear nothing of it.
    assert policy(variant).admit(pod(resources={}), config) == pod(resources={})


# What Pods have already


@each_variant
@pytest.mark.parametrize(
    ("part", "value", "why"),
    [
        ("volumes", {"name": HOOK, "emptyDir": {}}, f"volume {HOOK}"),
        ("volumes", {"name": HOOK, "image": {"reference": "r.example/other"}}, f"volume {HOOK}"),
        ("volumes", {"name": POLICIES, "configMap": {"name": "own"}}, f"volume {POLICIES}"),
        ("containers", {"name": HOOK, "image": "r.example/other"}, f"container {HOOK}"),
        ("initContainers", {"name": HOOK, "image": "r.example/other"}, f"container {HOOK}"),
        ("initContainers", {"name": HOOK, "image": IMAGE}, f"container {HOOK}"),
    ],
)
def test_a_name_of_ours_that_is_somebody_else_s(
    variant: str, part: str, value: Json, why: str
) -> None:
    original = pod(volumeMounts=[{"name": value["name"], "mountPath": "/srv"}])
    original["spec"].setdefault(part, []).append(value)
    if part != "volumes":
        del original["spec"]["containers"][0]["volumeMounts"]
    kubernetes_validate.validate(original, "1.36", strict=True)
    for config in (given(), given(namespacePolicies="policies")):
        admitted = policy(variant).admit(original, config)
        assert admitted["spec"] == original["spec"]
        assert marks(admitted) == (None, f"model: the Pod has another {why}")


def distinct(admitted: Json) -> None:
    """What Kubernetes' schema doesn't say: names and places are there once, and volumes exist."""
    spec = admitted["spec"]
    both = [*spec.get("initContainers", []), *spec["containers"]]
    volumes = [row["name"] for row in spec.get("volumes", [])]
    for names in ([row["name"] for row in both], volumes):
        assert len(names) == len(set(names))
    for container in both:
        mounts = container.get("volumeMounts", [])
        places = [row["mountPath"] for row in mounts]
        assert len(places) == len(set(places))
        assert {row["name"] for row in mounts} <= set(volumes)
    kubernetes_validate.validate(admitted, "1.36", strict=True)


@each_variant
@pytest.mark.parametrize("first", VARIANTS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({}, {"image": f"registry.example/rocm-autopatch@sha256:{'34' * 32}"}),
        ({}, {"mountPath": "/elsewhere"}),
        ({}, {"namespacePolicies": "policies"}),
        ({"namespacePolicies": "policies"}, {}),
        ({}, {"pythonZips": ZIPS[0]}),
        ({"pythonZips": " ".join(ZIPS)}, {"pythonZips": ZIPS[1]}),
    ],
)
def test_a_copy_of_a_running_pod(
    variant: str, first: str, before: dict[str, str], after: dict[str, str]
) -> None:
    """It is as the parameters say now, whatever they said then."""
    original = pod(
        {"name": "PYTHONPATH", "value": "/a"}, {"name": "ROCM_AUTOPATCH_SITE", "value": "/own"}
    )
    copied = policy(first).admit(original, given(**before))
    # Somebody has added a container to it.
    for one in (copied, original):
        second = {**pod()["spec"]["containers"][0], "name": "second"}
        one["spec"]["containers"].append(second)
    expected = policy(variant).admit(original, given(**after))
    admitted = policy(variant).admit(copied, given(**after))
    # An empty list is none.
    if admitted["spec"].get("initContainers") == []:
        del admitted["spec"]["initContainers"]
    assert admitted == expected
    distinct(admitted)
    assert policy(variant).admit(admitted, given(**after)) == admitted


@each_variant
def test_annotations_that_were_there(variant: str) -> None:
    """They say what was done, and not what a template or another Pod says."""
    stale = dict(zip(MARKS, ("router", "server: nobody knows")))
    cases: list[tuple[Json, tuple[str | None, ...]]] = [
        (pod(), ("model", None)),
        (pod(resources={}), (None, None)),
        (
            pod(volumeMounts=[{"name": "own", "mountPath": "/opt"}]),
            (None, "model: something else is mounted at /opt"),
        ),
    ]
    for original, expected in cases:
        original["metadata"]["annotations"] = {**stale, "other": "stays"}
        admitted = policy(variant).admit(original)
        assert marks(admitted) == expected
        assert admitted["metadata"]["annotations"]["other"] == "stays"


@each_variant
@pytest.mark.parametrize("count", ["0", 0, "00", "0k"])
def test_none_of_a_resource(variant: str, count: Any) -> None:
    original = pod(resources={"limits": {"amd.com/gpu": count}})
    assert policy(variant).applies(original) is False
    # Nor beside one that asks.
    original["spec"]["containers"].append({**pod()["spec"]["containers"][0], "name": "second"})
    assert marks(policy(variant).admit(original)) == ("second", None)
    for some in ("10", 8):
        asks = pod(resources={"limits": {"amd.com/gpu": some}})
        assert marks(policy(variant).admit(asks)) == ("model", None)


@each_variant
@pytest.mark.parametrize(
    "fields", [{"os": {"name": "windows"}}, {"nodeSelector": {"kubernetes.io/os": "windows"}}]
)
def test_a_pod_for_windows(variant: str, fields: Json) -> None:
    original = pod()
    original["spec"].update(fields)
    kubernetes_validate.validate(original, "1.36", strict=True)
    assert policy(variant).admit(original) == original
    original["spec"].update(
        {"os": {"name": "linux"}, "nodeSelector": {"kubernetes.io/os": "linux"}}
    )
    assert marks(policy(variant).admit(original)) == ("model", None)


@each_variant
@pytest.mark.parametrize("word", ["off", "false", "False", "no", "disabled", "0"])
def test_words_that_turn_it_off(variant: str, word: str) -> None:
    original = pod()
    assert policy(variant).admit(original, namespace={INJECT: word}) == original
    original["metadata"]["labels"] = {INJECT: word}
    assert policy(variant).admit(original) == original


@each_variant
@pytest.mark.parametrize("word", ["on", "true", "True", "yes", "enabled", "1"])
def test_words_that_turn_it_on(variant: str, word: str) -> None:
    original = pod(resources={})
    original["metadata"]["labels"] = {INJECT: word}
    assert marks(policy(variant).admit(original)) == ("model", None)


@each_variant
@pytest.mark.parametrize("name", ["kube-system", "kube-public", "kube-node-lease"])
def test_namespaces_of_the_cluster_itself(variant: str, name: str) -> None:
    namespace = {"kubernetes.io/metadata.name": name}
    assert policy(variant).admit(pod(), namespace=namespace) == pod()
    namespace["kubernetes.io/metadata.name"] = "serving"
    assert marks(policy(variant).admit(pod(), namespace=namespace)) == ("model", None)


@each_variant
def test_the_parameters(variant: str) -> None:
    config = given(
        mountPath="/hook",
        ROCM_AUTOPATCH="observe",
        ROCM_AUTOPATCH_LOG="quiet",
        PYTHONPATH="/never",
        ROCM_AUTOPATCH_IMAGE="never",
        note="not a variable",
    )
    original = pod({"name": "ROCM_AUTOPATCH", "value": "off"})
    (container,) = policy(variant).admit(original, config)["spec"]["containers"]
    assert environment(container) == {
        "ROCM_AUTOPATCH": "off",
        "PYTHONPATH": "/hook",
        "ROCM_AUTOPATCH_IMAGE": "rocm/pytorch:latest",
        "ROCM_AUTOPATCH_LOG": "quiet",
    }
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == "/hook"


@each_variant
@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ([], None),
        ([{"name": "PYTHONPATH", "value": "/a"}], None),
        ([{"name": "ROCM_AUTOPATCH_LOG", "value": "quiet"}], None),
        ([{"name": "A", "value": "1"}, {"name": MAX}], f"A,{MAX}"),
        # Its value is not known, its name is.
        ([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}], "A"),
        # Kubernetes takes these names (since 1.30), and would put HOME's value in.
        ([{"name": "a,b", "value": "1"}, {"name": "$(HOME)", "value": "1"}], None),
        ([{"name": "é", "value": "1"}, {"name": "a.b", "value": "1"}, {"name": "_c"}], "_c"),
        ([{"name": "A", "value": "1"}, {"name": GIVEN, "value": "B"}], "B"),
    ],
)
def test_a_container_s_own_variables_are_named(
    variant: str, env: list[Json], expected: str | None
) -> None:
    original = pod(*env, envFrom=[{"configMapRef": {"name": "others"}}])
    (container,) = policy(variant).admit(original)["spec"]["containers"]
    assert environment(container).get(GIVEN) == expected
    # What the parameters give is somebody's wish, too.
    config = given(TORCH_LOGS="recompiles", ROCM_AUTOPATCH="on", **{GIVEN: "NEVER"})
    (container,) = policy(variant).admit(original, config)["spec"]["containers"]
    if expected != "B":
        expected = ",".join(filter(None, (expected, "TORCH_LOGS")))
    assert environment(container)[GIVEN] == expected


@each_variant
@pytest.mark.parametrize(
    ("fleet", "namespace", "own", "expected"),
    [
        (None, None, None, None),
        ("/hook/site", None, None, "/hook/site"),
        (None, "policies", None, "/hook-policies"),
        ("/hook/site", "policies", None, "/hook/site:/hook-policies"),
        ("/hook/site", "policies", "/own", "/own"),
    ],
)
def test_directories_of_policies(
    variant: str,
    fleet: str | None,
    namespace: str | None,
    own: str | None,
    expected: str | None,
) -> None:
    config = given(mountPath="/hook")
    for key, value in (("ROCM_AUTOPATCH_SITE", fleet), ("namespacePolicies", namespace)):
        if value:
            config["data"][key] = value
    original = pod(*([{"name": "ROCM_AUTOPATCH_SITE", "value": own}] if own else []))
    admitted = policy(variant).admit(original, config)
    (container,) = admitted["spec"]["containers"]
    assert environment(container).get("ROCM_AUTOPATCH_SITE") == expected
    mounts = {row["mountPath"]: row["name"] for row in container["volumeMounts"]}
    volumes = {row["name"]: row for row in admitted["spec"]["volumes"]}
    assert set(volumes) == set(mounts.values())
    if namespace:
        name = mounts["/hook-policies"]
        source = {"name": "policies", "optional": True}
        assert volumes[name] == {"name": name, "configMap": source}
    kubernetes_validate.validate(admitted, "1.36", strict=True)
    assert policy(variant).admit(admitted, config) == admitted


@each_variant
def test_names_of_resources(variant: str) -> None:
    original = pod(resources={"limits": {"amd.com/cpx_nps4": "2"}})
    assert policy(variant).admit(original) == original
    both = given(resources="amd.com/gpu amd.com/cpx_nps4")
    assert marks(policy(variant).admit(original, both)) == ("model", None)
    assert marks(policy(variant).admit(pod(), both)) == ("model", None)


@each_variant
@pytest.mark.parametrize("resources", [None, {}, {"limits": {"nvidia.com/gpu": "1", "cpu": "4"}}])
def test_who_does_not_ask_is_left_alone(variant: str, resources: Json | None) -> None:
    fields = {} if resources is None else {"resources": resources}
    original = pod(**fields)
    if resources is None:
        del original["spec"]["containers"][0]["resources"]
    assert policy(variant).applies(original) is False
    # Nor would the mutation change it.
    assert policy(variant).patch(original) == []


@each_variant
def test_labels(variant: str) -> None:
    def admitted(
        pod_s: str | None, namespace_s: str | None, original: Json
    ) -> tuple[str | None, ...]:
        original = copy.deepcopy(original)
        if pod_s is not None:
            original["metadata"]["labels"] = {INJECT: pod_s}
        namespace = {} if namespace_s is None else {INJECT: namespace_s}
        return marks(policy(variant).admit(original, namespace=namespace))

    asks, not_ = pod(), pod(resources={"claims": [{"name": "gpu"}]})
    not_["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    not_["spec"]["initContainers"] = [{"name": "first", "image": "rocm/pytorch:latest"}]
    kubernetes_validate.validate(not_, "1.36", strict=True)
    for namespace_s in (None, "on", "other"):
        assert admitted(None, namespace_s, asks) == ("model", None)
        assert admitted("other", namespace_s, asks) == ("model", None)
        assert admitted("off", namespace_s, asks) == (None, None)
        assert admitted(None, namespace_s, not_) == (None, None)
        # All its containers: a claim may be for any of them.
        assert admitted("on", namespace_s, not_) == ("model, first", None)
    for pod_s in (None, "on", "off"):
        assert admitted(pod_s, "off", asks) == (None, None)
        assert admitted(pod_s, "off", not_) == (None, None)


@each_variant
@pytest.mark.parametrize("profile", ["privileged", "baseline", "restricted"])
def test_a_namespace_that_may_refuse_image_volumes(variant: str, profile: str) -> None:
    namespace = {"pod-security.kubernetes.io/enforce": profile}
    admitted = policy(variant).admit(pod(), namespace=namespace)
    hooked = profile != "restricted" or variant == "init-container"
    assert marks(admitted) == ("model" if hooked else None, None)


@each_variant
def test_a_static_pod_s_mirror(variant: str) -> None:
    original = pod()
    original["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "1f0e"}
    assert policy(variant).admit(original) == original


@each_variant
@each_pod
def test_a_second_round_changes_nothing(variant: str, maker: str) -> None:
    admitted = policy(variant).admit(made(maker))
    assert policy(variant).admit(admitted) == admitted


@each_variant
def test_our_own_init_container_is_none_of_the_pod_s(variant: str) -> None:
    original = pod()
    original["metadata"]["labels"] = {INJECT: "on"}
    admitted = policy(variant).admit(original)
    assert marks(admitted) == ("model", None)
    assert policy(variant).admit(admitted) == admitted


@each_variant
def test_a_second_round_sees_what_came_between(variant: str) -> None:
    """As after another webhook that adds a container: reinvocationPolicy is IfNeeded."""
    admitted = policy(variant).admit(pod())
    later = copy.deepcopy(admitted)
    added = {**pod()["spec"]["containers"][0], "name": "added"}
    later["spec"]["containers"].insert(0, added)
    later["spec"].setdefault("initContainers", []).insert(0, {**added, "name": "before"})
    again = policy(variant).admit(later)
    assert marks(again) == ("added, model, before", None)
    assert again["spec"]["containers"][1] == admitted["spec"]["containers"][0]
    for name in ("added", "before"):
        assert environment(containers(again)[name])["PYTHONPATH"] == AT
    assert again["spec"]["volumes"] == admitted["spec"]["volumes"]
    names = [row["name"] for row in again["spec"]["initContainers"]]
    assert names.count(HOOK) == (variant == "init-container")
    kubernetes_validate.validate(again, "1.36", strict=True)


OTEL = "/otel-auto-instrumentation-python"


def instrumented(pod: Json, place: str = OTEL) -> Json:
    """As OpenTelemetry's operator makes it, whose webhook runs after us."""
    changed = copy.deepcopy(pod)
    (container,) = changed["spec"]["containers"]
    first = f"{place}/opentelemetry/instrumentation/auto_instrumentation"
    env = container.setdefault("env", [])
    rows = [row for row in env if row["name"] == "PYTHONPATH"]
    if rows:
        rows[0]["value"] = f"{first}:{rows[0]['value']}:{place}"
    else:
        env.append({"name": "PYTHONPATH", "value": f"{first}:{place}"})
    env.append({"name": "OTEL_TRACES_EXPORTER", "value": "none"})
    mount = {"name": "opentelemetry-auto-instrumentation-python", "mountPath": place}
    container.setdefault("volumeMounts", []).append(mount)
    changed["spec"].setdefault("volumes", []).append({"name": mount["name"], "emptyDir": {}})
    copier = {"name": mount["name"], "image": "r.example/otel", "volumeMounts": [mount]}
    changed["spec"].setdefault("initContainers", []).append(copier)
    return changed


@each_variant
@pytest.mark.parametrize("zips", ["", ZIPS[0]])
@pytest.mark.parametrize("own", [None, "/a:/b"])
def test_a_second_round_is_in_front_of_what_came_between(
    variant: str, zips: str, own: str | None
) -> None:
    """OpenTelemetry's sitecustomize runs no other one, and ours runs the next one."""
    config = given(pythonZips=zips)
    env = [] if own is None else [{"name": "PYTHONPATH", "value": own}]
    between = instrumented(policy(variant).admit(pod(*env), config))
    admitted = policy(variant).admit(between, config)
    (container,) = admitted["spec"]["containers"]
    expected = [
        AT,
        f"{OTEL}/opentelemetry/instrumentation/auto_instrumentation",
        *(own.split(":") if own else ()),
        OTEL,
    ]
    assert environment(container)["PYTHONPATH"].split(":") == expected
    assert environment(container)["OTEL_TRACES_EXPORTER"] == "none"
    assert marks(admitted) == ("model", None)
    distinct(admitted)
    # All the rest is there, and a third round has nothing to do.
    for part in ("volumes", "initContainers"):
        names = [sorted(row["name"] for row in one["spec"][part]) for one in (between, admitted)]
        assert names[0] == names[1]
    assert policy(variant).admit(admitted, config) == admitted


def test_what_came_between_is_kept_in_our_init_container() -> None:
    """Such as what LimitRanger and OpenShift's admission have set there."""
    between = policy("init-container").admit(pod())
    (copier,) = between["spec"]["initContainers"]
    copier["resources"]["limits"]["cpu"] = "1"
    copier["securityContext"]["runAsUser"] = 1000680000
    admitted = policy("init-container").admit(instrumented(between))
    assert copier in admitted["spec"]["initContainers"]


@each_variant
def test_what_came_between_is_kept_in_our_volumes(variant: str) -> None:
    """AlwaysPullImages sets the policy of an image volume, and refuses another one at the end."""
    config = given(namespacePolicies="policies")
    between = policy(variant).admit(pod(), config)
    for volume in between["spec"]["volumes"]:
        if "image" in volume:
            volume["image"]["pullPolicy"] = "Always"
        elif "emptyDir" in volume:
            volume["emptyDir"]["medium"] = "Memory"
        else:
            volume["configMap"]["defaultMode"] = 0o444
    admitted = policy(variant).admit(instrumented(between), config)
    distinct(admitted)
    for volume in between["spec"]["volumes"]:
        assert volume in admitted["spec"]["volumes"]


@each_variant
@pytest.mark.parametrize(
    "fields",
    [
        {"command": ["opentelemetry-instrument", "python3", "serve.py"]},
        {"command": ["sh", "-c"], "args": ["exec /opt/venv/bin/opentelemetry-instrument serve"]},
    ],
)
def test_a_command_that_hides_the_hook(variant: str, fields: Json) -> None:
    original = pod(**fields)
    admitted = policy(variant).admit(original)
    assert admitted["spec"] == original["spec"]
    why = "opentelemetry-instrument starts its program without the hook"
    assert marks(admitted) == (None, f"model: {why}")


@each_variant
def test_containers_after_the_32nd(variant: str) -> None:
    original = pod()
    (first,) = original["spec"]["containers"]
    original["spec"]["containers"] = [{**first, "name": f"c{number}"} for number in range(33)]
    admitted = policy(variant).admit(original)
    mounted = ["volumeMounts" in row for row in admitted["spec"]["containers"]]
    assert mounted == [True] * 32 + [False]


# The manifests


@each_variant
def test_what_a_policy_asks_of_the_server(variant: str) -> None:
    spec = policy(variant).spec
    assert (spec["failurePolicy"], spec["reinvocationPolicy"]) == ("Ignore", "IfNeeded")
    (rule,) = spec["matchConstraints"]["resourceRules"]
    # Not "pods/ephemeralcontainers", and no update: a container's env never changes.
    assert (rule["resources"], rule["operations"]) == (["pods"], ["CREATE"])


def test_the_variants_are_one_policy() -> None:
    """They differ in where the parameters come from, and in the volume and who fills it."""
    image, init, kyverno = (policy(variant).spec for variant in VARIANTS)
    assert image["matchConstraints"] == kyverno["matchConstraints"]
    for part in ("resourceRules", "objectSelector"):
        assert image["matchConstraints"][part] == init["matchConstraints"][part]
    assert image["matchConditions"] == init["matchConditions"] == kyverno["matchConditions"]
    assert image["variables"] == init["variables"]
    assert image["variables"][1:] == kyverno["variables"][1:]
    assert image["mutations"] == kyverno["mutations"]


@pytest.mark.parametrize("variant", ["image-volume", "init-container"])
def test_the_binding(variant: str) -> None:
    rule, binding = documents(f"{variant}/policy.yaml")
    config = parameters()
    assert binding["spec"]["policyName"] == rule["metadata"]["name"]
    reference = binding["spec"]["paramRef"]
    assert reference["parameterNotFoundAction"] == "Allow"
    for name in ("name", "namespace"):
        assert reference[name] == config["metadata"][name]
    assert rule["spec"]["paramKind"] == {name: config[name] for name in ("apiVersion", "kind")}
    (namespace,) = documents("base/namespace.yaml")
    assert namespace["metadata"]["name"] == config["metadata"]["namespace"]


def rendered(variant: str, *components: str) -> list[Json]:
    """What "kubectl apply -k" sends, for what our kustomization.yaml files have."""
    place = (PLACE / variant).resolve()
    kustomization = yaml.safe_load((place / "kustomization.yaml").read_text())
    assert set(kustomization) <= {"apiVersion", "kind", "resources", "patches"}
    found: list[Json] = []
    for name in kustomization.get("resources", []):
        path = (place / name).resolve()
        inner = str(path.relative_to(PLACE.resolve()))
        found += rendered(inner) if path.is_dir() else documents(inner)
    for component in components:
        inner = f"components/{component}"
        file = yaml.safe_load((PLACE / inner / "kustomization.yaml").read_text())
        assert file["kind"] == "Component"
        for name in file.get("resources", []):
            found += documents(f"{inner}/{name}")
        kustomization.setdefault("patches", []).extend(file["patches"])
    for patch in kustomization.get("patches", []):
        target = patch["target"]
        assert set(target) <= {"group", "kind", "name"}
        count = 0
        for index, document in enumerate(found):
            group, _, _ = document["apiVersion"].rpartition("/")
            about = {"group": group, "kind": document["kind"], **document["metadata"]}
            if all(re.fullmatch(value, about[key]) for key, value in target.items()):
                found[index] = jsonpatch.apply_patch(document, yaml.safe_load(patch["patch"]))
                count += 1
        assert count, target
    return found


NATIVE = {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}


# Kyverno's own type is not among Kubernetes' schemas.
@pytest.mark.parametrize(
    ("variant", "version", "kinds"),
    [
        ("image-volume", "1.36", NATIVE),
        ("init-container", "1.36", NATIVE),
        ("init-container-1.34", "1.34", NATIVE),
        ("init-container-1.34", "1.35", NATIVE),
        ("kyverno", "1.35", {"Role", "RoleBinding"}),
    ],
)
def test_kubernetes_takes_the_manifests(variant: str, version: str, kinds: set[str]) -> None:
    found = [row for row in rendered(variant) if row["kind"] != "MutatingPolicy"]
    assert {row["kind"] for row in found} == {"Namespace", "ConfigMap"} | kinds
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)


COMPONENTS = ("labelled-namespaces", "node-directory")


@pytest.mark.parametrize("variant", [*VARIANTS, "init-container-1.34"])
@pytest.mark.parametrize("component", [None, *COMPONENTS])
def test_kustomize(variant: str, component: str | None, tmp_path: Path) -> None:
    kubectl = find_kubectl()
    place, expected = PLACE / variant, rendered(variant)
    if component:
        # kustomize goes to other directories by relative paths alone.
        shutil.copytree(PLACE, tmp_path / "kubernetes")
        place, expected = tmp_path, rendered(variant, component)
        file = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"kubernetes/{variant}"],
            "components": [f"kubernetes/components/{component}"],
        }
        (place / "kustomization.yaml").write_text(yaml.safe_dump(file))
    command = [kubectl, "kustomize", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    def order(row: Json) -> tuple[str, str]:
        return row["kind"], row["metadata"]["name"]

    made = [row for row in yaml.safe_load_all(done.stdout) if row]
    assert sorted(made, key=order) == sorted(expected, key=order)


def with_component(variant: str, component: str) -> tuple[Policy, Json]:
    """The policy and its parameters, as the component changes them."""
    found = rendered(variant, component)
    (config,) = (row for row in found if row["kind"] == "ConfigMap")
    (rule,) = (row for row in found if row["kind"].endswith("Policy"))
    changed = Policy(variant)
    changed.spec = rule["spec"]
    return changed, config


@each_variant
def test_the_first_namespaces(variant: str) -> None:
    """Of the page: first the namespaces that are labelled, then all."""
    changed, _ = with_component(variant, "labelled-namespaces")
    for labels in ({}, {INJECT: "off"}, {INJECT: "other"}):
        assert changed.admit(pod(), namespace=labels) == pod()
    assert marks(changed.admit(pod(), namespace={INJECT: "on"})) == ("model", None)
    # A Pod alone does not bring it there.
    original = pod()
    original["metadata"]["labels"] = {INJECT: "on"}
    assert changed.admit(original) == original


@each_variant
@pytest.mark.parametrize("zips", ["", ZIPS[0]])
def test_a_directory_of_the_node(variant: str, zips: str) -> None:
    """Nothing of the Pod waits for an image: the kubelet makes the directory where none is."""
    changed, config = with_component(variant, "node-directory")
    # There is no image in the parameters.
    assert "image" not in config["data"]
    config["data"]["pythonZips"] = zips
    admitted = changed.admit(pod(), config)
    assert marks(admitted) == ("model", None)
    source = {"path": "/var/lib/rocm-autopatch/1", "type": "DirectoryOrCreate"}
    assert admitted["spec"]["volumes"] == [{"name": HOOK, "hostPath": source}]
    assert "initContainers" not in admitted["spec"]
    (container,) = admitted["spec"]["containers"]
    for mount in container["volumeMounts"]:
        assert (mount["name"], mount["readOnly"]) == (HOOK, True)
    distinct(admitted)
    assert changed.admit(admitted, config) == admitted
    # Profiles of Pod Security that refuse such a volume.
    for profile in ("baseline", "restricted"):
        namespace = {"pod-security.kubernetes.io/enforce": profile}
        assert changed.admit(pod(), config, namespace) == pod()
    # A Pod that was copied from before, and the way back.
    config["data"]["image"] = IMAGE
    by_image = given(pythonZips=zips)
    for one, other, parameters_then in (
        (policy(variant).admit(pod(), by_image), changed, config),
        (admitted, policy(variant), by_image),
    ):
        again = other.admit(one, parameters_then)
        if again["spec"].get("initContainers") == []:
            del again["spec"]["initContainers"]
        assert again == other.admit(pod(), parameters_then)
    for wrong in ("/var/lib", "/var/lib/rocm-autopatch/", "/var/lib/rocm-autopatch/../x", "/a"):
        config["data"]["nodePath"] = wrong
        why = "model: the nodePath of the parameters is no directory in /var/lib/rocm-autopatch"
        assert marks(changed.admit(pod(), config)) == (None, why)


def test_the_daemon_set() -> None:
    (found,) = documents("components/node-directory/daemonset.yaml")
    kubernetes_validate.validate(found, "1.34", strict=True)
    spec = found["spec"]["template"]["spec"]
    (config,) = documents("base/parameters.yaml")
    assert found["metadata"]["namespace"] == config["metadata"]["namespace"]
    (row,) = spec["initContainers"][0]["env"]
    assert row["valueFrom"]["configMapKeyRef"] == {"name": "rocm-autopatch", "key": "nodePath"}


@pytest.mark.parametrize("before", ["nothing", "empty", "there", "cut off"])
def test_the_daemon_set_fills_the_directory(tmp_path: Path, before: str) -> None:
    (found,) = documents("components/node-directory/daemonset.yaml")
    (copy_container,) = found["spec"]["template"]["spec"]["initContainers"]
    (script,) = copy_container["args"]
    node, hook = tmp_path / "node", tmp_path / "hook"
    (hook / "rocm_autopatch").mkdir(parents=True)
    (hook / "sitecustomize.py").write_text("new")
    node.mkdir()
    there = node / "1"
    if before in ("empty", "there"):
        there.mkdir()
    if before == "there":
        (there / "sitecustomize.py").write_text("old")
    if before == "cut off":
        (node / ".new").mkdir()
        (node / ".new" / "half").write_text("")
    script = script.replace("/var/lib/rocm-autopatch", str(node)).replace("/hook", str(hook))
    command = [*copy_container["command"], script]
    # A second one finds it, and changes nothing.
    for _ in range(2):
        subprocess.run(command, check=True, env={"NODE_PATH": str(there), "PATH": os.defpath})
    expected = "old" if before == "there" else "new"
    assert (there / "sitecustomize.py").read_text() == expected
    assert [path.name for path in node.iterdir()] == ["1"]
    assert before == "there" or (there / "rocm_autopatch").is_dir()
    assert there.stat().st_mode & 0o777 == 0o755


def test_kyverno_may_read_the_parameters() -> None:
    role, binding = documents("kyverno/reader.yaml")
    config = parameters()["metadata"]
    assert role["metadata"]["namespace"] == config["namespace"]
    (rule,) = role["rules"]
    assert rule == {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [config["name"]],
        "verbs": ["get"],
    }
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


@each_variant
@each_pod
def test_as_shipped_nothing_is_changed(variant: str, maker: str) -> None:
    """An image that can't be pulled would stop each Pod, so none is named."""
    original = made(maker)
    assert policy(variant).admit(original, shipped()) == original
    for empty in ("", " \n"):
        assert policy(variant).admit(original, given(image=empty)) == original


def test_the_page_for_users() -> None:
    page = (ROOT / "docs/fleet.md").read_text()
    variants = {path.parent.name for path in PLACE.glob("*/kustomization.yaml")} - {"base"}
    table = page[page.index("| variant |") :].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z0-9.-]+)` \|", table, re.MULTILINE)) == variants
    router = pod({"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    router["spec"]["containers"][0]["name"] = "router"
    _, why = marks(policy("image-volume").admit(router))
    assert f"\nrocm-autopatch/left-out: {why}\n" in page
    # What else leaves a container out.
    taken = pod()
    taken["spec"]["volumes"] = [{"name": HOOK, "emptyDir": {}}]
    cases = [
        (pod(volumeMounts=[{"name": "own", "mountPath": "/opt"}]), given()),
        (taken, given()),
        (pod(command=["opentelemetry-instrument", "serve"]), given()),
        (pod(), given(mountPath="/a:b")),
    ]
    for original, config in cases:
        _, why = marks(policy("image-volume").admit(original, config))
        reason = str(why).partition(": ")[2].replace("/a:b", "...")
        assert f"| `{reason}`" in page
    for word in ("off", "false", "no", "disabled", "0"):
        assert f'`"{word}"`' in page or f'`{INJECT}: "{word}"`' in page
        assert policy("image-volume").admit(pod(), namespace={INJECT: word}) == pod()


@pytest.mark.parametrize("name", ["first", "node"])
def test_the_kustomizations_of_the_page(name: str, tmp_path: Path) -> None:
    kubectl = find_kubectl()
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    (tmp_path / "kustomization.yaml").write_text(page_block("fleet", f"yaml {name}"))
    command = [kubectl, "kustomize", str(tmp_path)]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {row["kind"]: row for row in yaml.safe_load_all(made) if row}
    if name == "first":
        assert "image" not in found["ConfigMap"]["data"]
        selector = found["MutatingAdmissionPolicy"]["spec"]["matchConstraints"]["namespaceSelector"]
        assert [selects(selector, labels) for labels in ({}, {INJECT: "on"})] == [False, True]
        return
    spec = found["DaemonSet"]["spec"]["template"]["spec"]
    images = {row["image"] for row in (*spec["initContainers"], *spec["containers"])}
    assert images == {"registry.example/rocm-autopatch@sha256:DIGEST"}
    assert found["ConfigMap"]["data"]["nodePath"].startswith("/var/lib/rocm-autopatch/")


def compressed(directory: Path) -> float:
    """MB, about as a registry keeps it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        archive.add(directory, ".")
    return len(stream.getvalue()) / 1e6


def test_the_sizes_of_the_page(tree: Tree) -> None:
    """In fleet: without bytecode, and for each Python."""
    text = " ".join((ROOT / "docs/fleet.md").read_text().split())
    said = r"Without bytecode it has (\S+) MB compressed, and each Python adds (\S+) to (\S+) MB"
    ((without, least, most),) = re.findall(said, text)
    plain = compressed(tree())
    assert float(without) == pytest.approx(plain, rel=0.15)
    added = compressed(tree(find_python("3.11"))) - plain
    assert float(least) * 0.85 < added < float(most) * 1.15


# The evaluator


@pytest.mark.parametrize(
    ("expression", "mixed"),
    [
        ("[1, 2]", False),
        ('[1, "a"]', True),
        ('{"a": "b", "c": "d"}', False),
        ('{"a": 1, "c": "d"}', True),
        ('{"a": dyn(1), "c": dyn("d")}', False),
        ('{"a": 1, 2: 3}', True),
        ('[1].map(i, {"a": i, "b": "c"})', True),
        ('object.?a.orValue([{"b": object}, {"c": "d"}])', True),
        ('size([{"b": ["c", "d"]}]) + 1 == 2 && !([] == [[3]])', False),
        ('JSONPatch{op: "add", path: "/a", value: {"a": 1, "c": "d"}}', True),
        ('JSONPatch{op: "add", path: "/a", value: 1}', False),
    ],
)
def test_literals_of_more_than_one_type(expression: str, mixed: bool) -> None:
    environment = cel.NewEnv(
        descriptor_pool=patch_type(),
        variables={"object": cel.Type.DYN},
        extensions=[ext_optional.ExtOptional()],
    )
    found = list(literals(environment.compile(expression).serialize()))
    assert any(len(kinds) > 1 for kinds in found) is mixed


def test_an_error_is_one() -> None:
    with pytest.raises(AssertionError, match=r"mountPath"):
        policy("image-volume").patch(pod(), {"data": {"image": "i", "resources": "amd.com/gpu"}})


def test_what_the_variants_share() -> None:
    """kustomize can't put one text into three policies, so they are held together here."""
    specs = [
        next(one["spec"] for one in documents(f"{variant}/policy.yaml") if "Policy" in one["kind"])
        for variant in VARIANTS
    ]
    first, *others = (
        {
            "conditions": spec["matchConditions"],
            "variables": [one for one in spec["variables"] if one["name"] != "parameters"],
            "rules": spec["matchConstraints"]["resourceRules"],
        }
        for spec in specs
    )
    for other in others:
        assert other == first


# The program


Tree = Callable[..., Path]
LAY_OUT = str(ROOT / "deploy/image/tree.py")


@pytest.fixture(scope="session")
def tree(wheel: Path) -> Iterator[Tree]:
    """Makes what the image carries. Not below /dev, where no Pod may have it."""
    outside = tempfile.TemporaryDirectory()

    def made(*pythons: str, at: str = AT, epoch: str = "0", site: Path | None = None) -> Path:
        place = Path(tempfile.mkdtemp(dir=outside.name)) / "hook"
        command = [sys.executable, LAY_OUT, "--at", at, str(wheel), str(place), *pythons]
        command += ["--site", str(site)] if site else []
        subprocess.run(command, check=True, env={"SOURCE_DATE_EPOCH": epoch})
        return place

    with outside:
        yield made


def test_the_tree(tree: Tree) -> None:
    first, second = (
        tree(find_python("3.9"), find_python("3.13"), epoch="1700000000") for _ in "ab"
    )
    assert {path.name for path in first.iterdir()} == {
        "LICENSE",
        "__pycache__",
        "rocm_autopatch",
        "sitecustomize.py",
    }
    files = sorted(path.relative_to(first) for path in first.rglob("*"))
    assert files == sorted(path.relative_to(second) for path in second.rglob("*"))
    for name in files:
        path = first / name
        assert path.stat().st_mtime == 1700000000
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)
        if path.is_file():
            assert path.read_bytes() == (second / name).read_bytes(), name
        if path.suffix == ".py":
            compiled = list((path.parent / "__pycache__").glob(f"{path.stem}.cpython-3*.pyc"))
            assert len(compiled) == 2, name
            for one in compiled:
                # PEP 552: a hash, and not to be checked.
                assert int.from_bytes(one.read_bytes()[4:8], "little") == 1
                assert f"{AT}/{name}".encode() in one.read_bytes()


def test_the_tree_with_policies(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir(mode=0o700)
    (tmp_path / "team.yaml").write_text("version: 1\n")
    (tmp_path / "team.yaml").chmod(0o666)
    site = tree(site=tmp_path) / "site"
    assert {path.name for path in site.iterdir()} == {"evidence", "team.yaml"}
    for path, mode in ((site, 0o755), (site / "evidence", 0o755), (site / "team.yaml", 0o644)):
        assert path.stat().st_mode & 0o777 == mode


def test_the_wheel_in_a_config_map(wheel: Path, tmp_path: Path) -> None:
    """docs/overlay.md, for one Pod. What else a release puts into dist/ is too much for it."""
    kubectl = find_kubectl()
    script = page_block("overlay", "sh configmap")
    (tmp_path / "dist").mkdir()
    shutil.copy(wheel, tmp_path / "dist")
    for name in ("rocm_autopatch-0.1.0.tar.gz", "rocm_autopatch-caches.tar.gz"):
        (tmp_path / "dist" / name).write_bytes(os.urandom(1 << 20))
    (tmp_path / "sitecustomize_stub").symlink_to(ROOT / "sitecustomize_stub")
    script = script.replace("create configmap", "create --dry-run=client -o json configmap")
    command = ["sh", "-euc", script]
    env = {"PATH": f"{Path(kubectl).parent}:{os.defpath}", "HOME": str(tmp_path)}
    made = subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.PIPE, env=env).stdout
    found = json.loads(made)
    assert set(found["binaryData"]) == {wheel.name}
    assert set(found["data"]) == {"sitecustomize.py"}
    size = len(base64.b64decode(found["binaryData"][wheel.name]))
    assert size + len(found["data"]["sitecustomize.py"]) < 1 << 20
    page = (ROOT / "docs/overlay.md").read_text()
    (said,) = re.findall(r"put the wheel \(([0-9.]+) MB\) into a ConfigMap", page)
    assert float(said) == pytest.approx(size / 1e6, rel=0.15)


@pytest.mark.parametrize("wrong", ["wheel", "python", "parent", "compiles", "site"])
def test_half_a_tree_is_none(wheel: Path, tmp_path: Path, wrong: str) -> None:
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\nexit 1\n")
    fails.chmod(0o755)
    to = Path("/proc/none/hook") if wrong == "parent" else tmp_path / "new" / "hook"
    archive = fails if wrong == "wheel" else wheel
    python = {"python": "python3.99", "compiles": str(fails)}.get(wrong, sys.executable)
    command: list[str | Path] = [sys.executable, LAY_OUT, archive, to, python]
    command += ["--site", fails] if wrong == "site" else []
    done = subprocess.run(command, capture_output=True, text=True)
    said = {
        "wheel": f"{fails} is no wheel that can be read\n",
        "python": "there is no python3.99\n",
        "parent": "/proc/none/hook can't be written: No such file or directory\n",
        "site": f"{fails} is no directory\n",
        "compiles": f"{fails} can't compile the package: see its lines above\n",
    }
    assert (done.returncode, done.stderr) == (1, said[wrong])
    assert list(tmp_path.glob("new/*")) == []


def test_the_tree_replaces_nothing(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, LAY_OUT, str(wheel), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"{tmp_path} exists already\n")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(params=["3.9", "3.11", "3.13"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Interpreter:
    """An image's interpreter: a stand-in for torch, and nothing of ours."""
    made = make_venv(tmp_path / "plain", find_python(request.param))
    label_torch(made.site_packages, "2.13.0+rocm7.0", HIP)
    return made


@each_variant
def test_the_container_s_program_is_hooked(
    plain: Interpreter, tree: Tree, tmp_path: Path, variant: str
) -> None:
    """The environment is the one that the mutation gives, the directory the one that it mounts."""
    place = tree(str(plain.path))
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "sitecustomize.py").write_text("import os\nos.environ['PLUGINS'] = 'run'\n")
    image = "docker.io/rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129"
    own = {"name": f"{MAX}_POINTWISE", "value": "1"}
    original = pod({"name": "PYTHONPATH", "value": str(plugins)}, own, image=image)
    before = environment(original["spec"]["containers"][0])
    code = f"{SEEN}; print(os.environ.get('PLUGINS'), os.environ[{own['name']!r}])"
    assert plain.value(code, env={MAX: "1", **before}) == "1\nrun 1"

    admitted = policy(variant).admit(original, given(mountPath=str(place)))
    (container,) = admitted["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == str(place)
    env = {MAX: "1", **environment(container)}
    done = plain.run("-c", code, env=env)
    # The image's value is gone, the Pod's is kept.
    assert done.stdout == "None\nrun 1\n"
    first, line = done.stderr.splitlines()
    assert first.endswith(f"because a user set it, not the image: {own['name']}")
    assert line.startswith(f"rocm_autopatch: policy safe applies (image: {image}): unset {MAX}")
    status = plain.run("-m", "rocm_autopatch", "status", "--no-torch", "--json", env=env)
    report = json.loads(status.stdout)
    assert (report["active"], report["errors"]) == (True, [])
    assert report["facts"]["image"]["value"] == image
    # All of it from the bytecode that the image carries.
    done = plain.run("-v", "-c", "pass", env=env)
    read = [line for line in done.stderr.splitlines() if "code object from" in line]
    ours = [line for line in read if str(place) in line]
    assert ours
    assert all(".pyc" in line for line in ours)


@pytest.fixture(scope="session")
def opentelemetry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the operator copies into a Pod, for this Python."""
    place = tmp_path_factory.mktemp("opentelemetry")
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    command += ["--target", str(place), "opentelemetry-distro==0.66b2"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return place


def test_beside_opentelemetry(tree: Tree, tmp_path: Path, opentelemetry: Path) -> None:
    python = make_venv(tmp_path / "plain")
    label_torch(python.site_packages, "2.13.0+rocm7.0", HIP)
    place = tree(str(python.path))
    config = given(mountPath=str(place))
    between = instrumented(policy("image-volume").admit(pod(), config), str(opentelemetry))
    exporters = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")
    image = {MAX: "1", **dict.fromkeys(exporters, "none")}
    code = f"{SEEN}; import sys; print('opentelemetry.sdk' in sys.modules)"

    # With one round: OpenTelemetry's sitecustomize is first, and it runs no other.
    env = {**image, **environment(between["spec"]["containers"][0])}
    assert python.run("-c", code, env=env).stdout == "1\nTrue\n"
    status = ("-m", "rocm_autopatch", "status", "--no-torch", "--json")
    done = python.run(*status, env=env, check=False)
    (error,) = json.loads(done.stdout)["errors"]
    hidden = f"{opentelemetry}/opentelemetry/instrumentation/auto_instrumentation/sitecustomize.py"
    said = f"{hidden} comes first on sys.path and does not run {place}/sitecustomize.py"
    assert (done.returncode, said in error) == (1, True), error

    admitted = policy("image-volume").admit(between, config)
    env = {**image, **environment(admitted["spec"]["containers"][0])}
    done = python.run("-c", code, env=env)
    assert done.stdout == "None\nTrue\n"
    assert done.stderr.startswith("rocm_autopatch: policy safe applies")
    # Children have both, too, though OpenTelemetry has put itself in front for them.
    code += "; import rocm_autopatch; print(rocm_autopatch.status()['active'])"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    assert python.run("-c", child, env=env).stdout == "None\nTrue\nTrue\n"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert python.run("-c", child, env=env).stdout == "None\nTrue\nTrue\n"
    report = json.loads(python.run(*status, env=env).stdout)
    assert (report["active"], report["errors"]) == (True, [])


def test_the_command_of_opentelemetry(tree: Tree, tmp_path: Path, opentelemetry: Path) -> None:
    """Half an effect: the command's own start removes the variable, its program has no hook."""
    python = make_venv(tmp_path / "plain")
    label_torch(python.site_packages, "2.13.0+rocm7.0", HIP)
    place = tree(str(python.path))
    exporters = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")
    env = {MAX: "1", **dict.fromkeys(exporters, "none")}
    env["PYTHONPATH"] = f"{place}:{opentelemetry}"
    command = (opentelemetry / "bin" / "opentelemetry-instrument", python.path)
    code = f"{SEEN}; import rocm_autopatch; print(rocm_autopatch.status()['active'])"
    assert python.run(*command, "-c", code, env=env).stdout == "None\nFalse\n"


@pytest.mark.parametrize("way", ["in front", "by its command"])
def test_an_installed_hook_beside_opentelemetry(
    wheel: Path, tmp_path: Path, opentelemetry: Path, way: str
) -> None:
    """What the pages recommend for such programs."""
    python = make_hooked(tmp_path / "installed", wheel)
    label_torch(python.site_packages, "2.13.0+rocm7.0", HIP)
    exporters = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")
    env = {MAX: "1", **dict.fromkeys(exporters, "none"), "PYTHONPATH": str(opentelemetry)}
    command: list[str | Path] = []
    if way == "in front":
        first = f"{opentelemetry}/opentelemetry/instrumentation/auto_instrumentation"
        env["PYTHONPATH"] = f"{first}:{opentelemetry}"
    else:
        command = [opentelemetry / "bin" / "opentelemetry-instrument", python.path]
    code = f"{SEEN}; import sys, rocm_autopatch; print('opentelemetry.sdk' in sys.modules, "
    done = python.run(*command, "-c", f"{code}rocm_autopatch.status()['active'])", env=env)
    assert done.stdout == "None\nTrue True\n"


def test_policies_of_the_fleet_and_of_a_namespace(
    plain: Interpreter, tree: Tree, tmp_path: Path
) -> None:
    """The image carries the first, a ConfigMap the second."""
    pip(plain, "install", "pyyaml", "packaging")

    def write_policy(directory: Path, names: str) -> Path:
        directory.mkdir()
        rows = "".join(f"  {name}: {{set: {directory.name}}}\n" for name in names)
        (directory / "team.yaml").write_text(f"version: 1\nenv:\n{rows}")
        return directory

    # Where the mutation mounts both.
    place = tree(str(plain.path), site=write_policy(tmp_path / "site", "AB"))
    namespace = write_policy(place.with_name("hook-policies"), "B")
    config = given(
        mountPath=str(place),
        ROCM_AUTOPATCH_SITE=f"{place}/site",
        namespacePolicies="policies",
    )
    (container,) = policy("image-volume").admit(pod(), config)["spec"]["containers"]
    env = environment(container)
    code = "import os; print(os.environ['A'], os.environ['B'])"
    done = plain.run("-c", code, env=env)
    assert (done.stdout, done.stderr) == ("site hook-policies\n", "")
    # A namespace has no such ConfigMap: the directory is empty.
    (namespace / "team.yaml").unlink()
    assert plain.value(code, env=env) == "site site"


@pytest.fixture(params=["3.9", "3.10", "3.11", "3.12", "3.13"])
def movable(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Interpreter, Path]:
    """A venv, and the zip file of a library that its Python looks for, where files may be put."""
    version = request.param
    # What was found may be a script of pyenv's.
    code = "import os, sys; print(os.path.realpath(sys.executable), os.path.dirname(os.__file__))"
    told = subprocess.check_output([find_python(version), "-I", "-c", code], text=True)
    base, library = told.split()
    prefix = tmp_path / "prefix"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib").mkdir()
    shutil.copy(base, prefix / "bin" / "python")
    (prefix / "lib" / f"python{version}").symlink_to(library)
    made = make_venv(tmp_path / "venv", str(prefix / "bin" / "python"))
    label_torch(made.site_packages, "2.13.0+rocm7.0", HIP)
    return made, prefix / "lib" / f"python{version.replace('.', '')}.zip"


def test_the_hook_beside_the_standard_library(
    movable: tuple[Interpreter, Path], tree: Tree, tmp_path: Path
) -> None:
    """The image's PYTHONPATH stays, and "python -I" has the hook, too."""
    python, zipped = movable
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "plugin.py").write_text("")
    image = {MAX: "1", "PYTHONPATH": str(plugins)}
    code = f"{SEEN}; import sys; print({str(plugins)!r} in sys.path)"
    # The command that the parameters name.
    (line,) = re.findall(r"python3 -c '(.+)'", (PLACE / "base/parameters.yaml").read_text())
    assert python.value(line) == str(zipped)
    assert python.value(code, env=image) == "1\nTrue"

    zipped.symlink_to(tree(str(python.path), at=AT))
    admitted = policy("image-volume").admit(pod(), given(pythonZips=str(zipped)))
    env = {**image, **environment(admitted["spec"]["containers"][0])}
    done = python.run("-c", code, env=env)
    assert done.stdout == "None\nTrue\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("rocm_autopatch: policy safe applies")
    for flag in ("-E", "-I"):
        assert python.run(flag, "-c", code, env=env).stdout == "None\nFalse\n"
    assert python.value("import os, plugin; print(os.environ['PYTHONPATH'])", env=env) == str(
        plugins
    )
    # A program that gives its children no environment.
    child = f"[sys.executable, '-c', {code!r}], env={{{MAX!r}: '1'}}"
    child = f"import subprocess, sys; subprocess.run({child})"
    assert python.value(child, env=env) == "None\nFalse"
    status = python.run("-I", "-m", "rocm_autopatch", "status", "--no-torch", "--json", env=env)
    report = json.loads(status.stdout)
    assert (report["active"], report["errors"]) == (True, [])
    # What comes after on sys.path still runs, and what comes before is run in our place.
    (python.site_packages / "sitecustomize.py").write_text("print('after')\n")
    assert python.run("-c", SEEN, env=env).stdout == "after\nNone\n"
    (plugins / "sitecustomize.py").write_text("print('before')\n")
    assert python.run("-c", SEEN, env=env).stdout == "before\n1\n"
    # With both ways, the hook is there once.
    both = {**env, "PYTHONPATH": f"{zipped}:{plugins}"}
    done = python.run("-c", SEEN, env=both)
    assert done.stdout == "before\nNone\n"
    assert len(done.stderr.splitlines()) == 1
