"""deploy/kubernetes by Kubernetes' own admission, and whether tests/admission.py says the same.

    python -m experiments.live.admission [--work DIRECTORY]

admission.go has the chain of kube-apiserver with its plugin MutatingAdmissionPolicy. It is built in
a Debian root from Debian's sources of k8s.io/apiserver: 3 GB, as root, 5 minutes to make the root
and 3 to build it on 2 quiet cores. Later runs take seconds. Only the native variants can be tried.

It prints a line for each check. If one differs, the exit status is 1.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.live.run import (
    CHROOT,
    INSIDE,
    PATH,
    LiveError,
    Place,
    enter,
    inside,
    make_root,
    say,
)
from tests.admission import IMAGE, INJECT, Json, Policy, documents, parameters, shipped
from tests.conftest import ROOT

NAME = "kubernetes"
PLACE = Place("sid", ("golang-go", "golang-k8s-apiserver-dev", "golang-k8s-client-go-dev"), base=())
VARIANTS = ("image-volume", "init-container")
GO = ("GO111MODULE=off", "GOPATH=/usr/share/gocode", "GOTELEMETRY=off")
ROUNDS = 20
# By name: the parameters that differ from those of deploy/kubernetes.
CONFIGS: dict[str, dict[str, str]] = {
    "with an image": {},
    "zips": {"pythonZips": "/usr/lib/python310.zip /usr/lib/python312.zip"},
    "all": {
        "pythonZips": "/usr/lib/python310.zip",
        "namespacePolicies": "rocm-autopatch-policies",
        "ROCM_AUTOPATCH_SITE": "/opt/rocm-autopatch/site",
        "ROCM_AUTOPATCH": "observe",
        "TORCH_LOGS": "recompiles",
        "resources": "amd.com/gpu amd.com/cpx_nps4",
    },
    "blocks": {
        "image": f"{IMAGE}\n",
        "mountPath": "/opt/rocm-autopatch/\n",
        "resources": "amd.com/cpx_nps4\namd.com/gpu\n",
        "pythonZips": "/usr/lib/python310.zip\n/usr/lib/python312.zip\n/usr/lib/python310.zip\n",
    },
    "a node's directory": {"nodePath": "/var/lib/rocm-autopatch/1"},
    "a mountPath that is none": {"mountPath": "/opt:/rocm-autopatch"},
}
# By name: the labels of a namespace.
NAMESPACES: dict[str, dict[str, str]] = {
    "serving": {},
    "off": {INJECT: "off"},
    "on": {INJECT: "on"},
    "restricted": {"pod-security.kubernetes.io/enforce": "restricted"},
    "kube-system": {"kubernetes.io/metadata.name": "kube-system"},
    "false": {INJECT: "false"},
}
GPU = {"limits": {"amd.com/gpu": "1"}}
ADDED: Json = {"name": "added", "image": "rocm/added:1", "resources": GPU, "env": [{"name": "A"}]}


def container(name: str = "model", **fields: Any) -> Json:
    return {"name": name, "image": "rocm/pytorch:latest", "resources": GPU, **fields}


def pod(*containers: Json, namespace: str = "serving", **metadata: Any) -> Json:
    about = {"name": "one", "namespace": namespace, **metadata}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": about,
        "spec": {"containers": [*containers]},
    }


def pods() -> Iterator[tuple[str, Json]]:
    """Pods with what tells them apart: those that frameworks make, and one for each rule."""
    for made in yaml.safe_load_all((ROOT / "tests/data/pods.yaml").read_text()):
        about = made["metadata"]
        yield about.get("name") or about["generateName"], made
    source = {"fieldRef": {"fieldPath": "metadata.name"}}
    for name, env in (
        ("no env", []),
        ("an empty PYTHONPATH", [{"name": "PYTHONPATH", "value": ""}]),
        ("two PYTHONPATH", [{"name": "PYTHONPATH", "value": one} for one in ("/a", "$(HOME)/b")]),
        ("PYTHONPATH with valueFrom", [{"name": "PYTHONPATH", "valueFrom": source}]),
        ("odd names", [{"name": one, "value": "1"} for one in ("a,b", "$(A)", "é", "_c", "A")]),
        ("ours", [{"name": "ROCM_AUTOPATCH_" + one, "value": "1"} for one in ("IMAGE", "GIVEN")]),
        ("sites", [{"name": "ROCM_AUTOPATCH_SITE", "value": "/own"}]),
    ):
        yield name, pod(container(env=env, envFrom=[{"configMapRef": {"name": "others"}}]))
    for place in ("/opt/rocm-autopatch", "/opt/", "/usr", "/opt/rocm"):
        mounted = pod(container(volumeMounts=[{"name": "own", "mountPath": place}]))
        mounted["spec"]["volumes"] = [{"name": "own", "emptyDir": {}}]
        yield f"something is mounted at {place}", mounted
    for name in ("hook", "policies"):
        mounted = pod(container())
        mounted["spec"]["volumes"] = [{"name": f"rocm-autopatch-{name}", "emptyDir": {}}]
        yield f"another volume {name}", mounted
    yield "another container of our name", pod(container("rocm-autopatch-hook"))
    stale = {"rocm-autopatch/injected": "other", "rocm-autopatch/left-out": "other: why"}
    yield "annotations", pod(container(), annotations=stale)
    yield "annotations of a Pod without GPU", pod(container(resources={}), annotations=stale)
    windows = pod(container())
    windows["spec"]["os"] = {"name": "windows"}
    yield "windows", windows
    yield "none of it", pod(container(resources={"limits": {"amd.com/gpu": "0"}}))
    yield "opentelemetry-instrument", pod(container(command=["opentelemetry-instrument", "a"]))
    root = pod(container(resources={"limits": {**GPU["limits"], "cpu": "2", "memory": "1Gi"}}))
    root["spec"]["securityContext"] = {"runAsUser": 0}
    yield "root", root
    for variant in VARIANTS:
        yield f"a copy of a Pod, {variant}", Policy(variant).admit(pod(container(env=[])))
    yield "no GPU", pod(container(resources={"limits": {"cpu": "1"}}))
    yield "a partition", pod(container(resources={"limits": {"amd.com/cpx_nps4": "1"}}))
    for label in ("on", "off"):
        yield (
            f"label {label}",
            pod(container(), container("other", resources={}), labels={INJECT: label}),
        )
    yield "a mirror", pod(container(), annotations={"kubernetes.io/config.mirror": "1"})
    for namespace in NAMESPACES:
        yield f"namespace {namespace}", pod(container(), namespace=namespace)
    yield "33 containers", pod(*(container(f"c{number}") for number in range(33)))


def ready() -> list[Json]:
    """A policy of admission.go's, by which it sees that all others are there."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    labels = {"kubernetes.io/metadata.name": "ready"}
    expression = '[JSONPatch{op: "add", path: "/metadata/annotations", value: {"ready": "yes"}}]'
    group = "admissionregistration.k8s.io/v1"
    return [
        {
            "apiVersion": group,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": "ready"},
            "spec": {
                "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "resourceRules": [rule],
                    "namespaceSelector": {"matchLabels": labels},
                    "objectSelector": {},
                },
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
            },
        },
        {
            "apiVersion": group,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": "ready"},
            "spec": {"policyName": "ready"},
        },
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ready", "labels": labels}},
    ]


def config_map(changes: Mapping[str, str]) -> Json:
    found = parameters()
    found["data"].update(changes)
    return found


class Server:
    """admission.go, built in the root at *root*."""

    def __init__(self, root: Path) -> None:
        self._root = root
        source, target = ROOT / "experiments/live/admission.go", root / INSIDE / "admission.go"
        program = target.with_suffix("")
        if target.exists() and target.read_bytes() == source.read_bytes() and program.exists():
            return
        say("building admission.go")
        target.parent.mkdir(exist_ok=True)
        program.unlink(missing_ok=True)
        shutil.copy(source, target)
        build = f"cd /{INSIDE} && nice go build -p 1 -o admission admission.go"
        inside(root, "env", *GO, "sh", "-c", build)

    def admit(self, policies: Sequence[Json], cases: Sequence[Json], rounds: int = 1) -> list[Json]:
        """What admission.go answers to each case."""
        names = {case["pod"]["metadata"]["namespace"] for case in cases}
        spaces = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            for name, labels in {**{one: {} for one in names}, **NAMESPACES}.items()
        ]
        asked = {"documents": [*ready(), *policies, *spaces], "cases": cases, "rounds": rounds}
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", CHROOT, "sh", self._root, f"/{INSIDE}/admission"],
            # client-go's fake server does not stream lists.
            env={"PATH": PATH, "KUBE_FEATURE_WatchListClient": "false"},
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise LiveError(f"admission.go: {done.stderr.strip()[-500:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]


def differs(answer: Json) -> str:
    """What is wrong with an answer, "" if it is what was expected."""
    if answer["error"]:
        return str(answer["error"])
    return "" if answer["admitted"] == answer["expected"] else "another Pod than was expected"


def compare(server: Server, variant: str) -> Iterator[tuple[str, str]]:
    """Each Pod under each parameters: what is compared, and what is wrong."""
    policy = Policy(variant)
    for label, changes in CONFIGS.items():
        config = config_map(changes)
        named = list(pods())
        cases = []
        for _, one in named:
            labels = NAMESPACES.get(one["metadata"]["namespace"], {})
            cases.append({"pod": one, "expected": policy.admit(one, config, labels)})
        answers = server.admit([*documents(f"{variant}/policy.yaml"), config], cases, ROUNDS)
        wrong = [
            f"{name}: {differs(found)}"
            for (name, _), found in zip(named, answers)
            if differs(found)
        ]
        changed = [case["pod"] != case["expected"] for case in cases]
        # The last one is the largest, and no Pod that anybody has.
        rows = zip(changed[:-1], answers)
        times = [found["seconds"] * 1000 for is_changed, found in rows if is_changed]
        what = f"{len(cases)} Pods, {sum(changed)} of them changed, parameters {label}"
        yield f"{what}, {min(times):.1f}-{max(times):.1f} ms", "; ".join(wrong)


def again(server: Server, variant: str) -> Iterator[tuple[str, str]]:
    """Another plugin adds a container after us, so the chain is run a second time."""
    policy = Policy(variant)
    cases = []
    for _, one in pods():
        labels = NAMESPACES.get(one["metadata"]["namespace"], {})
        between = copy.deepcopy(policy.admit(one, namespace=labels))
        between["spec"]["containers"].insert(0, ADDED)
        # Nothing is run again where nothing of ours was run.
        expected = (
            between if between["spec"]["containers"][1:] == one["spec"]["containers"] else None
        )
        if expected is None or policy.applies(one, labels):
            expected = policy.admit(between, namespace=labels)
        cases.append({"pod": one, "expected": expected, "added": ADDED})
    answers = server.admit([*documents(f"{variant}/policy.yaml"), parameters()], cases)
    wrong = [
        f"{name}: {differs(found)}" for (name, _), found in zip(pods(), answers) if differs(found)
    ]
    yield f"{len(cases)} Pods to which a later plugin adds a container", "; ".join(wrong)


def in_front(server: Server, variant: str) -> Iterator[tuple[str, str]]:
    """Another plugin puts itself in front of us, and the second round us in front of it."""
    policy, front = Policy(variant), "/otel"
    one = pod(container(env=[{"name": "PYTHONPATH", "value": "/a"}]))
    between = policy.admit(one)
    (changed,) = between["spec"]["containers"]
    for row in changed["env"]:
        if row["name"] == "PYTHONPATH":
            row["value"] = f"{front}:{row['value']}"
    expected = policy.admit(between)
    value = {row["name"]: row["value"] for row in expected["spec"]["containers"][0]["env"]}
    asked = [{"pod": one, "expected": expected, "front": front}]
    (answer,) = server.admit([*documents(f"{variant}/policy.yaml"), parameters()], asked)
    ours = value["PYTHONPATH"] == f"/opt/rocm-autopatch:{front}:/a"
    wrong = differs(answer) if ours else f"expected {value['PYTHONPATH']}"
    yield "a later plugin in front of PYTHONPATH: ours is first again", wrong


def failures(server: Server, variant: str) -> Iterator[tuple[str, str]]:
    """Where the policy fails or has no parameters, the Pod is as it was, and is not refused."""
    one = pod(container())
    same = [{"pod": one, "expected": one}]
    rule, binding = documents(f"{variant}/policy.yaml")
    (answer,) = server.admit([rule, binding, shipped()], same)
    yield "parameters as shipped: the Pod stays as it is", differs(answer)
    broken = parameters()
    del broken["data"]["mountPath"]
    (answer,) = server.admit([rule, binding, broken], same)
    yield "parameters without mountPath: the Pod stays as it is", differs(answer)
    strict = copy.deepcopy(rule)
    strict["spec"]["failurePolicy"] = "Fail"
    (answer,) = server.admit([strict, binding, broken], same)
    said = "no such key: mountPath" in answer["error"]
    yield "the same with failurePolicy Fail: refused", "" if said else f"said {answer['error']!r}"
    (answer,) = server.admit([rule, binding], same)
    yield "no parameters: the Pod stays as it is", differs(answer)


def limits(server: Server, variant: str) -> Iterator[tuple[str, str]]:
    """Large Pods. Where CEL's cost limit ends the evaluation, the Pod stays as it is."""
    config = config_map(CONFIGS["all"])
    policies = [*documents(f"{variant}/policy.yaml"), config]
    for count, variables, fits in ((1, 1000, True), (32, 100, True), (32, 400, False)):
        names = [f"A_VARIABLE_OF_USUAL_LENGTH_{number}" for number in range(variables)]
        env = [{"name": name, "value": "1"} for name in names]
        one = pod(*(container(f"c{number}", env=env) for number in range(count)))
        # Google's CEL ends large evaluations sooner, so the Pod is not compared with its answer.
        (answer,) = server.admit(policies, [{"pod": one, "expected": one}])
        hooked = "annotations" in answer["admitted"]["metadata"]
        took = f"{answer['seconds'] * 1000:.0f} ms"
        what = f"{count} containers with {variables} variables each"
        if fits:
            yield f"{what}, {took}", "" if hooked else f"left as it is, {answer['error']}"
        else:
            yield f"{what}: the Pod stays as it is", differs(answer)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "roots")
    work = parser.parse_args().work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    failed = False
    try:
        root = make_root(NAME, work, PLACE)
        server = Server(root)
        version = enter(root, "dpkg-query", "-W", "-f", "${Version}", "golang-k8s-apiserver-dev")
        print(f"k8s.io/apiserver {version.stdout}")
        for variant in VARIANTS:
            for check in (compare, again, in_front, failures, limits):
                for what, wrong in check(server, variant):
                    print(f"{variant:15} {what}: {wrong or 'ok'}", flush=True)
                    failed = failed or bool(wrong)
    except LiveError as error:
        print(f"live: {error}", file=sys.stderr)
        return 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
