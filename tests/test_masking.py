"""Secrets: what is one, what is none, and that no command shows or writes one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rocm_autopatch.cli import main
from rocm_autopatch.compile_report.gather import gather_report
from rocm_autopatch.policy import lint
from rocm_autopatch.probe import variables
from rocm_autopatch.support import masking
from tests.conftest import ROOT, Interpreter

# None of these is anybody's.
RANDOM = "aB3dE5gH7jK9mN1pQ3sT5vX7zB9c"
SECRETS = {
    "VLLM_API_KEY": "abc123xyz",
    "SGLANG_API_KEY": "s-e-s-a-m-e",
    "TORCH_SECRET": "open sesame",
    "HF_TOKEN": "hunter22",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "awsSecretAccessKey": "abcdef",
    "DB_PASS": "p4ss",
    "MYSQL_PWD": "p4ss",
    "PGPASSWORD": "12345678",
    "NCCL_PASSWD": "x",
    "DOCKER_AUTH_CONFIG": '{"auths": {}}',
    "TRITON_SECRET": "x",
    "TRITON_AUTH_TOKEN": "p4ss",
    "TRITON_KEY": "p4ss",
    "TORCHINDUCTOR_TOKEN": "p4ss",
    "TORCHINDUCTOR_REDIS_PASS": "p4ss",
    "TORCH_COMPILE_REMOTE_AUTH": "p4ss",
    "AOT_INDUCTOR_SIGNING_KEY": "p4ss",
    "TORCHDYNAMO_COOKIE": "p4ss",
    "GITHUB_PAT": "p4ss",
    "SESSION_COOKIE": "p4ss",
    "GOOGLE_CREDENTIALS": "p4ss",
    "SENTRY_DSN": "https://a@b/1",
}
SECRET_VALUES = (
    "hf_abcdefghijklmnopqrst",
    "sk-proj-abcdefghijklmnop1234",
    "sk-ant-api03-abcdefghijklmnop",
    "ghp_abcdefghijklmnop1234567890",
    "github_pat_11ABCDEFG0abcdefghij",
    "glpat-abcdefghij1234567890",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "redis://user:hunter2@cache:6379/0",
    "https://abcdefghij0123456789@pypi.example/simple",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    "Bearer abcdefgh1234",
    RANDOM,
)
HARMLESS = {
    "PATH": "/opt/rocm/bin:/usr/local/sbin:/usr/bin",
    "PWD": "/root",
    "OLDPWD": "/root",
    "SSH_AUTH_SOCK": "/tmp/ssh-XXXX/agent.1",
    "HF_TOKEN_PATH": "/run/secrets/hf",
    "MAX_TOKENS": "128000",
    "VLLM_ALLOW_RUNTIME_TOKENS": "true",
    "TOKENIZERS_PARALLELISM": "false",
    "TOKENIZER_MODE": "mistral",
    "KEYBOARD": "us-intl",
    "MONKEY": "banana",
    "AUTHOR": "somebody",
    "TORCH_COMPILE_STICKY_PGO_KEY": "job-1",
    "TORCH_COMPILE_CACHE_KEY_TAG": "nightly",
    "TORCHINDUCTOR_DISABLED_PASSES": "reorder,fuse",
    "TORCHINDUCTOR_SOME_CACHE_KEY": "v2",
    "IMAGE": "rocm/sgl-dev:v0.5.8.post1-rocm700-mi35x-20260219",
    "DIGEST": "registry.example:5000/x@sha256:" + "0123456789abcdef" * 4,
    "COMMIT": "cf30153c4c131c8164ee7798e5022d810682e2cb",
    "UUID": "550e8400-e29b-41d4-a716-446655440000",
    "TORCH": "2.13.0+rocm7.0.lw.git7e1940d4",
    "WHEEL": "/x/torch-2.13.0+rocm7.0.lw.git7e1940d4-cp311-cp311-manylinux_2_28_x86_64.whl",
    "PYTORCH_ROCM_ARCH": "gfx90a;gfx942;gfx950;gfx1100;gfx1101;gfx1200;gfx1201",
    "PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
    "BACKENDS": "TRITON,ATEN,CPP,CK,CKTILE",
    "CACHED": "/root/.cache/c2q/c2qxyzabcdefghijklmnopqrstuvwxyz234567abcdefghij.py",
    "TENSILE": "Cijk_Ailk_Bljk_HHS_BH_Bias_HA_S_SAV_UserArgs_MT128x128x16_MI16x16x1_SN_LDSB1",
    "MANGLED": "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastINS0_13B",
    "URL": "https://download.pytorch.org/whl/rocm7.0/torch/",
    "KEY": "torch._inductor.config.max_autotune_gemm_backends",
}


@pytest.mark.parametrize("name", SECRETS)
def test_by_name(name: str) -> None:
    assert masking.value(name, SECRETS[name]) == masking.MASK
    assert SECRETS[name] not in masking.text(f"{name}='{SECRETS[name]}' is set")


@pytest.mark.parametrize("value", SECRET_VALUES, ids=lambda value: value[:12])
def test_by_value(value: str) -> None:
    assert masking.is_secret("TORCHINDUCTOR_X", value)
    masked = masking.text(f"it is {value}, it seems")
    assert masked.startswith("it is ")
    assert masked.endswith(", it seems")
    for part in re.findall(r"\w{6,}", value):
        assert part in ("Bearer", "example", "simple") or part not in masked


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless(name: str) -> None:
    assert masking.value(name, HARMLESS[name]) == HARMLESS[name]
    assert masking.text(f"{name}={HARMLESS[name]}") == f"{name}={HARMLESS[name]}"


def test_nothing_of_ours_is_a_secret() -> None:
    for place in ("policies", "rocm_autopatch/probe"):
        for file in (ROOT / place).glob("*.yaml"):
            text = file.read_text(encoding="utf-8")
            assert masking.text(text) == text, file
    names = {n for v in lint.versions("2.4..2.15") for n in variables.fed_keys(v)}
    for name in {*names, *variables.verdict_table()["variables"]}:
        for value in ("1", "0", "", "2048", "some,words", "/a/path"):
            assert masking.value(name, value) == value


def test_command_lines() -> None:
    words = (
        "python serve.py --model m/Llama-3.1-8B --api-key S1 --api-key=S2 API_KEY=S3 --hf-token S4 "
        "--password S5 --max-tokens 128000 --tokenizer mistral --tokenizer-mode=auto --port 80 "
        "--key S6 --ssl-keyfile /etc/k.pem --tp 8 https://u:S7@host/x?token=S8&y=1"
    )
    shown = masking.command([*words.split(), "-H", "Authorization: Bearer S9abcdefgh"])
    assert not re.search(r"\bS[0-9]", " ".join(shown))
    left = " ".join(shown).replace(masking.MASK, "")
    for word in ("m/Llama-3.1-8B", "128000", "mistral", "=auto", "/etc/k.pem", "--tp 8", "host/x"):
        assert word in left
    assert masking.command(["--token", "--verbose"]) == ["--token", masking.MASK]
    assert len(masking.command(["--token"])) == 1
    code = "import os; os.environ['HF_TOKEN'] = 'hunter22'; headers = {\"api_key\": \"hunter22\"}"
    assert "hunter22" not in masking.command(["python", "-c", code])[2]
    # A program's own variables are none of our business.
    assert masking.looks("token_ids == 5 and key.size(0) == 4, L['token'] = x") == (
        "token_ids == 5 and key.size(0) == 4, L['token'] = x"
    )


def test_the_values_of_an_environment() -> None:
    secrets = masking.Secrets(
        {"MY_TOKEN": "open sesame", "MAX_TOKENS": "128000", "A": "value of A"}
    )
    assert secrets.text("open sesame, 128000, value of A") == "(masked), 128000, value of A"
    row = {"name": "DB_PASS", "before": "p4ss", "after": None, "layers": [{"why": "open sesame"}]}
    assert secrets.data([row]) == [
        {"name": "DB_PASS", "before": "(masked)", "after": None, "layers": [{"why": "(masked)"}]}
    ]


def everything(python: Interpreter, *command: str, **env: str) -> str:
    env = {"ROCM_AUTOPATCH_LOG": "quiet", **env}
    done = python.run("-m", "rocm_autopatch", *command, env=env, check=False)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_status_and_explain(python311: Interpreter, tmp_path: Path) -> None:
    policy = tmp_path / "team.yaml"
    policy.write_text(
        "version: 1\nenv:\n"
        "  VLLM_API_KEY: {delete: true, why: 'was abc123xyz'}\n"
        "  CACHE_URL: {set: 'redis://u:hunter2@h/0'}\n"
        "  SOME_ID: {delete: true}\n"
        "  MY_TOKEN: {set: 'sesame'}\n"
    )
    env = {
        "ROCM_AUTOPATCH_POLICY": str(policy),
        "VLLM_API_KEY": "abc123xyz",
        "SOME_ID": "hf_abcdefghijklmnopqrst",
    }
    show = ("policies", "show", str(policy))
    for command in (
        show,
        (*show, "--json"),
        ("status", "--no-torch"),
        ("status", "--no-torch", "--json"),
        ("explain", "--no-torch", "VLLM_API_KEY"),
        ("explain", "--no-torch", "--json", "CACHE_URL"),
        ("explain", "--no-torch", "SOME_ID"),
    ):
        shown = everything(python311, *command, **env)
        assert masking.MASK in shown, command
        for secret in ("hunter2", "hf_abc", "abc123xyz", "sesame"):
            assert secret not in shown, command


def test_probe_and_its_record(python311: Interpreter, tmp_path: Path) -> None:
    given = {
        "VLLM_API_KEY": "abc123xyz",
        "SGLANG_API_KEY": "s-e-s-a-m-e",
        "TORCH_SECRET": "open sesame",
        "NCCL_PASSWD": "q",
        "VLLM_HOST_NAME": "internal-host-7",
        "TORCH_LOGS": "hf_abcdefghijklmnopqrst",
        "TRITON_CACHE_DIR": "redis://u:hunter2@h/0",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "hf_abcdefghijklmnopqrst",
    }
    values = {"abc123xyz", "s-e-s-a-m-e", "open sesame", "hf_abcdefgh", "hunter2"}
    file = tmp_path / "images.yaml"
    image = ("--image", "team/image:1")
    for command in (("probe", *image), ("probe", "--json", "--record", str(file), *image)):
        shown = everything(python311, *command, **given)
        for value in values:
            assert value not in shown
        assert masking.MASK in shown
    recorded = file.read_text()
    for value in {*values, "internal-host-7", *set(given) - {"TORCHINDUCTOR_MAX_AUTOTUNE"}}:
        assert value not in recorded
    assert "TORCHINDUCTOR_MAX_AUTOTUNE" in recorded
    assert main(["check", str(file)]) == 0


def test_the_compile_report(tmp_path: Path) -> None:
    (tmp_path / "processes.jsonl").write_text(
        json.dumps(
            {
                "pid": 1,
                "time": 1.0,
                "command": ["python", "serve.py", "--api-key", "hunter22"],
                "torch": "2.13.0",
                "traces": "trace",
            }
        )
        + "\n"
    )
    report = gather_report(tmp_path)
    assert report.processes[0].command == ("python", "serve.py", "--api-key", "(masked)")
    assert main(["report", str(tmp_path), "--json", "--html", str(tmp_path / "r.html")]) == 0
    assert "hunter22" not in (tmp_path / "r.html").read_text()
