"""launch/run.py: what it prints for each kind, word for word, and what happens when that is run.

No TPU, GPU, scheduler or cloud is called: stand-ins for ssh, gcloud, docker, srun and sbatch record what reaches them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from launch import run as launcher
from launch.command import Job
from scope_jax.config import CardError
from scope_jax.config.slices import SLICES
from scope_jax.games import load_card
from scope_jax.multihost.signing import KEY
from scope_jax.plan.hardware import ABSENT, TPU, hardware
from tests.launch import programs

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
CARD = "configs/ssp/atlas.toml"
RUN = "/data/runs/It's my run"  # a space and a quote
IMAGE = "us-docker.pkg.dev/lab/images/scope-jax:1"
POD = f'{{name="scope", project="lab", zone="us-east5-a", tpu_type="v5p-32", image="{IMAGE}", spot=true'
GKE = f'{{cluster="tpus", project="lab", location="us-east5", tpu_type="v6e-16", image="{IMAGE}", queue="research"'
SETS = {
    "local": ["launch.fake_devices=4"],
    "gpu-node": ["launch.kind=gpu-node", 'launch.environment={XLA_CLIENT_MEM_FRACTION="0.8"}'],
    "gpu-nodes": ["launch.kind=gpu-node", 'launch.gpu_node.hosts=["node0", "me@node1"]'],
    "slurm": [
        "launch.kind=slurm",
        'launch.slurm={nodes=2, gpus_per_node=4, cpus_per_task=16, partition="gpu", account="lab", time="1-00:00:00"}',
        'launch.environment={HF_HOME="/scratch/my hub"}',
    ],
    "tpu-pod": ["launch.kind=tpu-pod", f'launch.tpu_pod={POD}, volumes={{"/mnt/my data"="/data"}}}}'],
    "gke-jobset": [
        "launch.kind=gke-jobset",
        f'launch.gke_jobset={GKE}, spot=true, service_account="trainer", volumes={{"scope-data"="/data"}}}}',
    ],
}


@pytest.fixture(autouse=True)
def _no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.delenv(KEY, raising=False)


def printed(capsys: pytest.CaptureFixture[str], name: str, *sets: str) -> str:
    given = [word for override in (*SETS[name], *sets) for word in ("--set", override)]
    assert launcher.main([CARD, "--run", RUN, "--set", "train.steps=5", *given, "--print"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", SETS)
def test_what_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, name).replace(sys.executable, "/checkout/.venv/bin/python").replace(os.getcwd(), "/checkout")
    text = re.sub(rf"({KEY}: )[0-9a-f]{{64}}\n", r"\1(64 digits)\n", text)  # another one for each launch
    suffix = "yaml" if name == "gke-jobset" else "sh"
    assert text == (GOLDEN / f"{name}.{suffix}").read_text()
    if suffix == "sh":
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


TRAIN = ["train", CARD, "--run", RUN, "--set", "train.steps=5"]


def test_a_process_on_every_host_gets_its_words_and_its_place(tmp_path: Path, capsys, monkeypatch) -> None:
    stand_ins = programs.Bin(tmp_path / "bin")
    stand_ins.add("ssh", programs.SSH)
    monkeypatch.setattr(sys, "executable", str(stand_ins.recorder))
    done = stand_ins.bash(printed(capsys, "gpu-nodes", 'launch.environment={HF_HOME="/a b"}'))
    assert done.returncode == 0, done.stderr
    calls = sorted(stand_ins.calls(), key=lambda call: call["env"]["JAX_PROCESS_ID"])
    assert [call["argv"] for call in calls] == [["-m", "scope_jax", *TRAIN]] * 2
    assert [call["cwd"] for call in calls] == [os.getcwd()] * 2
    places = [{name: call["env"][name] for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")}
              for call in calls]  # fmt: skip
    assert places == [
        {"JAX_COORDINATOR_ADDRESS": "node0:8476", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number)}
        for number in range(2)
    ]
    assert calls[0]["env"]["HF_HOME"] == "/a b"
    (key,) = {call["env"][KEY] for call in calls}
    assert re.fullmatch("[0-9a-f]{64}", key)
    assert key not in " ".join([*stand_ins.log("ssh.log"), *(word for call in calls for word in call["argv"])])
    assert not list(stand_ins.folder.glob("home-*/.*.key"))
    stand_ins.bash(printed(capsys, "gpu-nodes"))
    assert stand_ins.calls()[-1]["env"][KEY] != key  # another launch


def test_a_key_on_a_host_is_for_its_user_only(tmp_path: Path, capsys, monkeypatch) -> None:
    stand_ins = programs.Bin(tmp_path / "bin")
    stand_ins.add("ssh", programs.SSH.replace("exec bash", '[ "$1" = -tt ] && exit\nexec bash'))  # no process starts
    assert stand_ins.bash(f"umask 0; {printed(capsys, 'gpu-nodes')}").returncode == 0
    left = list(stand_ins.folder.glob("home-*/.*.key"))
    assert len(left) == 2 and {path.stat().st_mode & 0o777 for path in left} == {0o600}


def test_a_host_that_fails_makes_the_launch_fail(tmp_path: Path, capsys) -> None:
    stand_ins = programs.Bin(tmp_path / "bin")
    stand_ins.add("ssh", '#!/bin/bash\n[ "$3" = node0 ] || [ "$1" = -T ] || exit 9\n')
    assert stand_ins.bash(printed(capsys, "gpu-nodes")).returncode == 9


@pytest.mark.parametrize(("signal_", "code"), [(signal.SIGINT, 143), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_started_processes(tmp_path: Path, capsys, signal_: int, code: int) -> None:
    stand_ins = programs.Bin(tmp_path / "bin")
    # it takes a moment to end, as ssh does
    ending = "trap 'sleep 1; exit 143' TERM"
    handing = '[ "$1" = -T ] && exit'
    stand_ins.add("ssh", f"#!/bin/bash\n{handing}\n{ending}\necho $$ >> {tmp_path}/started\nsleep 60 & wait\n")
    script = printed(capsys, "gpu-nodes")
    environment = os.environ | {"PATH": f"{stand_ins.folder}:{os.environ['PATH']}"}
    # As in a terminal's foreground, wherever the tests run.
    heard = "import os, signal, sys; signal.signal(2, signal.SIG_DFL); os.execvp('bash', ['bash', '-c', sys.argv[1]])"
    launched = subprocess.Popen([sys.executable, "-c", heard, script], env=environment)
    started = tmp_path / "started"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (started.exists() and len(started.read_text().split()) == 2):
        time.sleep(0.05)
    launched.send_signal(signal_)
    assert launched.wait(30) == code
    for number in started.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)


def test_runs_of_the_same_name_are_other_jobs() -> None:
    names = {Job(CARD, run).name for run in ("a/first", "b/first", "a/../a/first", "a/" + "x" * 60)}
    assert len(names) == 3 and all(len(name) <= 40 for name in names)


@pytest.mark.parametrize("name", ["tpu-pod", "gke-jobset"])
@pytest.mark.parametrize("run", ["runs/first", "/runs/first", "/database/first", "/data/../runs/first"])
def test_a_run_folder_that_would_end_with_its_container_is_refused(name: str, run: str, capsys) -> None:
    sets = [word for override in SETS[name] for word in ("--set", override)]
    assert launcher.main([CARD, "--run", run, *sets, "--print"]) == 2
    said = capsys.readouterr().err
    assert f"the run folder {run} would be removed with its container" in said and "mounts (/data)" in said
    for lasting in ("/data", "/data/runs/../first/", "gs://bucket/runs/first"):
        assert launcher.main([CARD, "--run", lasting, *sets, "--print"]) == 0


def test_a_run_on_object_storage_is_the_same_job_from_every_folder(tmp_path: Path, monkeypatch) -> None:
    here = Job(CARD, "gs://bucket/runs/first").name
    monkeypatch.chdir(tmp_path)
    assert Job(CARD, "gs://bucket/runs/first").name == Job(CARD, "gs://bucket/runs/first/").name == here
    assert Job(CARD, "gs://other/runs/first").name != here


def test_the_job_of_slurm_runs_the_command(tmp_path: Path, capsys, monkeypatch) -> None:
    stand_ins = programs.Bin(tmp_path / "bin")
    stand_ins.add("srun", programs.SRUN)
    monkeypatch.setattr(sys, "executable", str(stand_ins.recorder))
    done = stand_ins.bash(printed(capsys, "slurm"))
    assert done.returncode == 0, done.stderr
    (call,) = stand_ins.calls()
    assert call["argv"] == ["-m", "scope_jax", *TRAIN] and call["cwd"] == os.getcwd()
    assert call["env"]["JAX_LOCAL_DEVICE_IDS"] == "0,1,2,3" and call["env"]["HF_HOME"] == "/scratch/my hub"
    assert re.fullmatch("[0-9a-f]{64}", call["env"][KEY])


def test_sbatch_reads_the_script(tmp_path: Path, capsys, monkeypatch) -> None:
    text = printed(capsys, "slurm")
    stand_ins = programs.Bin(tmp_path / "bin")
    stand_ins.add("sbatch", f"#!/bin/bash\ncat > {shlex.quote(str(tmp_path / 'job'))}\nexit 3\n")
    monkeypatch.setenv("PATH", f"{stand_ins.folder}:{os.environ['PATH']}")
    given = [word for override in SETS["slurm"] for word in ("--set", override)]
    assert launcher.main([CARD, "--run", RUN, "--set", "train.steps=5", *given]) == 3
    assert (tmp_path / "job").read_text() == text


def test_a_missing_program_is_named(monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert launcher.main([CARD, "--run", RUN, "--set", "launch.kind=slurm"]) == 2
    assert "sbatch is not installed here" in capsys.readouterr().err


def test_a_slice_is_created_once_and_its_hosts_start_a_container(tmp_path: Path, capsys) -> None:
    stand_ins = programs.Bin(tmp_path / "bin")
    for name, text in (("gcloud", programs.GCLOUD), ("sudo", programs.SUDO), ("docker", programs.DOCKER)):
        stand_ins.add(name, text)
    script = printed(capsys, "tpu-pod")
    for _ in range(2):
        done = stand_ins.bash(script)
        assert done.returncode == 7, done.stderr  # the container's exit code
    assert [call["argv"] for call in stand_ins.calls()] == [TRAIN] * 2
    keys = {call["env"][KEY] for call in stand_ins.calls()}
    assert len(keys) == 2 and all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)
    assert not any(key in line for key in keys for log in ("gcloud.log", "docker.log") for line in stand_ins.log(log))
    assert set(stand_ins.log("modes.log")) == {"600"} and not list((stand_ins.folder / "home").iterdir())
    asked = stand_ins.log("gcloud.log")
    (created,) = [line for line in asked if " create " in line]
    assert created.endswith(
        "create scope --project=lab --zone=us-east5-a --node-id=scope --accelerator-type=v5p-32 "
        "--runtime-version=v2-alpha-tpuv5 --spot"
    )
    assert sum("auth configure-docker us-docker.pkg.dev" in line for line in asked) >= 2
    options = {"--volume=/mnt/my data:/data", "--network=host", "--ipc=host", "--ulimit=memlock=-1", "--privileged"}
    assert options | {IMAGE} <= set(stand_ins.log("docker.log"))


def test_a_slice_that_was_preempted_is_reported(tmp_path: Path, capsys) -> None:
    stand_ins = programs.Bin(tmp_path / "bin")
    stand_ins.add("gcloud", '#!/bin/bash\n[[ "$*" == *describe* ]] && echo SUSPENDED\n')
    done = stand_ins.bash(printed(capsys, "tpu-pod"))
    assert done.returncode == 1
    assert "is SUSPENDED; delete it" in done.stderr and "queued-resources delete scope" in done.stderr


@pytest.mark.parametrize(("then", "said"), [("echo DELETING", "is being deleted"), ("exit 1", "cannot be read")])
def test_a_slice_that_goes_away_ends_the_wait(tmp_path: Path, capsys, then: str, said: str) -> None:
    stand_ins = programs.Bin(tmp_path / "bin")
    once = f'[ -e "{tmp_path}/asked" ] || {{ touch "{tmp_path}/asked"; echo PROVISIONING; exit; }}'
    stand_ins.add("gcloud", f"#!/bin/bash\n{once}\n{then}\n")
    stand_ins.add("sleep", "#!/bin/bash\n")
    done = stand_ins.bash(printed(capsys, "tpu-pod"))
    assert done.returncode == 1 and said in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud's own parser is not installed")
def test_gcloud_accepts_every_command(tmp_path: Path, capsys) -> None:
    found = []
    for line in printed(capsys, "tpu-pod").splitlines():
        if "gcloud compute" in line:
            start = line.partition("{ ")[2].rpartition(";")[0] if line.startswith("state()") else line.strip()
            found.append(shlex.split(start)[1] if start.startswith("echo ") else start)
    assert len(found) == 6
    environment = os.environ | {"CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1"}
    for command in found:
        check = ["gcloud", "meta", "lint-gcloud-commands", f"--command-string={command}"]
        done = subprocess.run(check, env=environment, capture_output=True, text=True, timeout=120, check=True)
        (verdict,) = json.loads(done.stdout)
        assert verdict["success"], (command, verdict["error_message"])


def test_the_manifest_is_a_jobset_for_every_node_of_the_slice(capsys) -> None:
    secret, found = yaml.safe_load_all(printed(capsys, "gke-jobset"))
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (job,) = found["spec"]["replicatedJobs"]
    work = job["template"]["spec"]
    assert (work["parallelism"], work["completions"]) == (4, 4)
    pod = work["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert pod["containers"][0]["command"] == ["scope-jax", *TRAIN]
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": 4}
    assert secret["kind"] == "Secret" and secret["metadata"]["namespace"] == found["metadata"]["namespace"]
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
    (again, _) = yaml.safe_load_all(printed(capsys, "gke-jobset"))
    assert re.fullmatch("[0-9a-f]{64}", secret["stringData"][KEY]) and again["stringData"] != secret["stringData"]


def expanded(text: str, variables: dict[str, str]) -> str:
    """A command's word or a variable's value as Kubernetes hands it to the container."""
    return re.sub(
        r"\$(?:\$|\((\w+)\))", lambda found: "$" if found[1] is None else variables.get(found[1], found[0]), text
    )


def test_dollars_reach_the_processes_of_a_jobset(capsys) -> None:
    price = "model.chat_template={{ '$$5 $(HOME) $1' }}"
    _, found = yaml.safe_load_all(printed(capsys, "gke-jobset", price, 'launch.environment={PS1="$(HOME)$$"}'))
    (container,) = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    assert expanded(container["command"][-1], {"HOME": "/root"}) == price
    assert [expanded(one["value"], {"HOME": "/root"}) for one in container["env"]] == ["$(HOME)$$"]


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["launch.kind=tpu-pod"], "needs the table [launch.tpu_pod]"),
        (["launch.kind=gke-jobset"], "needs the table [launch.gke_jobset]"),
        (["launch.kind=slurm", "launch.fake_devices=4"], "set fake_devices = 0"),
        (["launch.kind=pod"], "must be 'local', 'gpu-node', 'slurm', 'tpu-pod' or 'gke-jobset'"),
        (["launch.slurm.time=tomorrow"], "a time limit of Slurm"),
        (["launch.slurm.partition=a b"], "single word"),
        (["launch.slurm.grace=1"], "at least 10"),
        (['launch.gpu_node.hosts=["a", "a"]'], "name every host once"),
        (['launch.gpu_node.hosts=["a; reboot"]'], "which is not a host"),
        (['launch.environment={"A-B"="1"}'], "not the name of an environment variable"),
        (['launch.environment={A="1\\n2"}'], "unprintable"),
        ([f'launch.tpu_pod={POD}, volumes={{"/mnt"="data"}}}}'], "absolute path in the container"),
        ([f"launch.tpu_pod={POD.replace('v5p-32', 'v5p-31')}}}"], "such as v5p-8, v5p-16, v5p-32"),
        ([f"launch.tpu_pod={POD.replace('v5p-32', 'v9')}}}"], "not a known TPU type"),
        ([f"launch.gke_jobset={GKE.replace('tpus', 'TPUs')}}}"], "lower-case letters"),
    ],
)
def test_bad_tables_are_refused_in_one_sentence(sets: list[str], words: str) -> None:
    with pytest.raises(CardError) as caught:
        load_card(CARD, sets)
    assert words in str(caught.value) and "\n" not in str(caught.value)


# Cloud TPU's documentation: v5p names count cores, two to a chip; v5e and v6e count chips.
@pytest.mark.parametrize(
    ("name", "topology", "chips", "nodes"),
    [
        ("v5p-8", "2x2x1", 4, 1),
        ("v5p-16", "2x2x2", 8, 2),
        ("v5p-128", "4x4x4", 64, 16),
        ("v5litepod-1", "1x1", 1, 1),
        ("v5litepod-64", "8x8", 64, 16),
        ("v6e-16", "4x4", 16, 4),
    ],
)
def test_slices(name: str, topology: str, chips: int, nodes: int) -> None:
    kind = SLICES[name]
    assert (kind.topology, kind.chips, kind.nodes) == (topology, chips, nodes)


def test_every_slice_is_hardware_of_a_plan() -> None:
    assert all(TPU.fullmatch(kind.hardware) for kind in SLICES.values())


@pytest.mark.slow
def test_the_tpu_compiler_counts_the_same_chips(monkeypatch) -> None:
    pytest.importorskip("libtpu")
    for name, value in ABSENT.items():
        monkeypatch.setenv(name, value)
    for name in ("v5p-16", "v5litepod-64", "v6e-16"):
        assert len(hardware(SLICES[name].hardware).devices) == SLICES[name].chips
