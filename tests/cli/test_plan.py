"""`scope-jax plan` and `train --plan-first`."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.plan.asynchronous import lengths_of
from scope_jax.plan.command import SLOW_DTYPE, at_start, outline, statements
from scope_jax.plan.hardware import cuda_compiler, hardware, started
from scope_jax.plan.overlap import RowTokens
from scope_jax.report.progress import Progress
from scope_jax.run import host_memory
from scope_jax.run.files import EPISODES, LineWriter
from tests.plan.world import CARD, MODEL, SMALL, absent

ROOT = Path(__file__).parents[2]
SETS = [word for override in SMALL for word in ("--set", override)]


@pytest.fixture
def shape(tmp_path: Path) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODEL))
    return str(file)


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    return line


def test_errors_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--on v9:4x4 is not known hardware" in refused(CARD, "--on", "v9:4x4")
    card = "configs/spice/qwen3-8b.toml"
    unknown = refused(card, "--on", "8xH100", "--set", "model.checkpoint=nowhere/Unknown-9B")
    assert "no public figures of Unknown-9B" in unknown and "--model-config" in unknown
    assert "is missing" in refused(card, "--on", "8xH100", "--model-config", str(tmp_path / "none.json"))
    assert "not divisible by 6" in refused(card, "--on", "6xH100")
    (tmp_path / "bad.json").write_text("{")
    assert "is not JSON" in refused(card, "--on", "8xH100", "--model-config", str(tmp_path / "bad.json"))
    (tmp_path / "manifest.json").write_text('{"passages": 4')
    cut = refused("configs/ssp/qwen2.5-7b.toml", "--on", "8xH100", "--set", f"retrieval.index={tmp_path}")
    assert f"{tmp_path}/manifest.json" in cut and "--index PASSAGESxWIDTH" in cut
    monkeypatch.setattr("scope_jax.plan.hardware.find_spec", lambda name: None)
    assert "needs the TPU compiler; pip install libtpu" in refused(card, "--on", "v5e:2x2")


def test_the_card_of_qwen3_8b_without_a_budget_is_refused_on_8_h100_with_a_setting_that_fits(tmp_path: Path) -> None:
    """By arithmetic: 128 slots of 16,384 tokens on each tensor group of four are 72.3 GiB of pages on a device, beside
    3.8 of weights."""
    path = tmp_path / "card.toml"
    path.write_text((ROOT / "configs/scope/qwen3-8b.toml").read_text().replace("\ncache_gib", "\n# cache_gib"))
    result = CliRunner().invoke(app, ["plan", str(path), "--on", "8xH100", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["fits"], found["compiled"], found["phase"]) == (False, False, "generate")
    parts = found["phases"]["generate"]["parts_gib"]
    # 256 / 2 slots · (256 + 1 pages) + page 0, of 64 tokens · 36 layers · 2 · 2 heads · 128 · 2 bytes
    assert parts["cache"] == pytest.approx((128 * 257 + 1) * 64 * 36 * 2 * 2 * 128 * 2 / 2**30, abs=0.01)
    assert parts["engine weights"] == pytest.approx(2 * 8_190_735_360 / 4 / 2**30, abs=0.01)
    assert found["shortfall_gib"] > 5
    assert found["setting"] and found["setting"][0].startswith("rollout.cache_gib=")
    assert "does not fit" in result.stderr and "it fits with --set rollout.cache_gib=" in result.stderr


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **variables}
    line = [sys.executable, "-m", "scope_jax", *arguments]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_a_small_card_on_this_machine(shape: str) -> None:
    """An update without scoring, and the engine, compiled for the CPU; the parts of each phase add up to its peak."""
    Path(shape).write_text(json.dumps(MODEL | {"num_hidden_layers": 2}))
    small = ["rollout.slots=2", "learner.micro_batch_rows=2", "ssp.train=solver"]
    small += ["ssp.solver.loss.kl=none", "ssp.solver.loss.mini_batches=1", "model.compute_dtype=float32"]
    sets = [word for override in small for word in ("--set", override)]
    result = CliRunner().invoke(app, ["plan", CARD, *SETS, *sets, "--model-config", shape, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["compiled"] and found["fits"] and found["seconds_to_compile"] > 0
    assert [one["name"] for one in found["programs"]] == ["update solver @256", "decode", "prefill"]
    assert "shorter buckets (128) are not compiled; --whole compiles them" in found["notes"]
    # Forward once, backward twice; with rematerialisation once more but for the products that backward does not need.
    assert 1.0 < found["executed_of_theory"] < 1.6
    for phase in found["phases"].values():
        assert sum(phase["parts_gib"].values()) == pytest.approx(phase["total_gib"], abs=0.05)


def test_a_quick_plan_compiles_nothing_and_starts_no_device(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card of this machine, whose memory is that which is available, and one of GPUs that could be compiled for."""
    monkeypatch.setattr("scope_jax.plan.hardware._this_machine", None)
    monkeypatch.setattr("scope_jax.plan.planning.compiled_program", None)
    monkeypatch.setattr("scope_jax.plan.hardware.cuda_compiler", lambda: True)
    for on in ([], ["--on", "4xH100"]):
        result = CliRunner().invoke(app, ["plan", CARD, *SETS, *on, "--quick", "--model-config", shape, "--json"])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout.splitlines()[-1])
        assert not found["compiled"] and found["fits"] and found["phases"]["learn"]["total_gib"] > 0
        assert (found["on"], found["chip"]) == (("4xH100", "H100") if on else ("this machine", "cpu"))
    assert "--whole compiles programs, and --quick none" in refused(CARD, "--quick", "--whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    "card", ["spell/qwen3-30b-a3b-instruct --on 8xH200", "ssp/atlas", "scope/qwen3-8b --on v5p:4x4x4"]
)
def test_a_quick_plan_of_a_shipped_card_takes_less_than_five_seconds(card: str) -> None:
    """Of one processor's time: what a process waits for on a busy machine is not its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = command("plan", *card.split(), "--quick")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


def test_the_gpus_of_this_machine_are_those_that_its_driver_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scope_jax.plan.hardware.GPU_FILES", tmp_path)
    monkeypatch.setattr("scope_jax.plan.hardware.find_spec", lambda name: name)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for place in ("0000:1b:00.0", "0000:43:00.0"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert hardware(None, compiled=False).platform == "cpu"
    monkeypatch.delenv("JAX_PLATFORMS")
    here = hardware(None, compiled=False)
    assert (here.chip.name, len(here.devices), here.compiles) == ("H100", 2, False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert len(hardware(None, compiled=False).devices) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("scope_jax.plan.hardware.lists_tpu", lambda: True)
    with pytest.raises(UserError, match="which TPU this machine has is known only when it has been started"):
        hardware(None, compiled=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (tmp_path / "0000:1b:00.0" / "information").write_text("Model: \t\t NVIDIA RTX 9999\n")
    with pytest.raises(UserError, match="the memory of NVIDIA RTX 9999 is not known; name its kind with --on"):
        hardware(None, compiled=False)


def test_available_memory_is_that_of_the_container_if_it_has_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 GiB available, of a limit of 3 GiB with 2.5 in use, .25 of them pages of files: .75 GiB."""
    gib = 2**30
    meminfo, status, own, group = (tmp_path / name for name in ("meminfo", "status", "cgroup", "group"))
    meminfo.write_text("MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 2097152 kB\n")
    status.write_text("Name:\tpython\nVmRSS:\t  524288 kB\n")
    monkeypatch.setattr(host_memory, "MEMINFO", meminfo)
    monkeypatch.setattr(host_memory, "STATUS", status)
    monkeypatch.setattr(host_memory, "OWN", own)
    monkeypatch.setattr(host_memory, "GROUPS", ((group, "memory.max", "memory.current", "inactive_file"),))
    assert (host_memory.total(), host_memory.available(), host_memory.free()) == (8 * gib, 2 * gib, 2.5 * gib)
    group.mkdir()
    (group / "memory.max").write_text("max\n")
    assert host_memory.available() == 2 * gib
    (group / "memory.max").write_text(f"{3 * gib}\n")
    (group / "memory.current").write_text(f"{5 * gib // 2}\n")
    (group / "memory.stat").write_text(f"anon 7\ninactive_file {gib // 4}\n")
    assert host_memory.available() == 3 * gib // 4
    job = group / "slurm" / "job_7"
    (job / "step_0").mkdir(parents=True)
    (job / "memory.max").write_text(f"{gib}\n")
    (job / "memory.current").write_text(f"{gib // 2}\n")
    own.write_text("4:cpu:/elsewhere\n0::/slurm/job_8/step_0\n")
    assert host_memory.available() == 3 * gib // 4
    own.write_text("4:cpu:/elsewhere\n0::/slurm/job_7/step_0\n")
    assert host_memory.available() == gib // 2


TPU = pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu to compile for TPUs that are not there")
CUDA = pytest.mark.skipif(
    not cuda_compiler(), reason="needs jax[cuda12] or jax[cuda13] to compile for GPUs that are not there"
)


@pytest.mark.slow
@pytest.mark.parametrize("on", [pytest.param("v5e:2x2", marks=TPU), pytest.param("4xH100", marks=CUDA)])
def test_a_small_card_on_devices_that_are_not_here(on: str, shape: str) -> None:
    """fsdp 4: two gathers of 7 matrices in each layer and one of each table; no all-reduce above 1 MiB."""
    small = ["--set", "learner.buckets=[256]", "--set", "rollout.slots=16"]
    done = command("plan", CARD, "--on", on, *SETS, *small, "--model-config", shape, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["compiled"] and found["fits"] and found["devices"] == 4
    assert [one["name"] for one in found["programs"]] == [
        "update solver @256",
        "score old and reference @256",  # the same program for both roles
        "update proposer @256",
        "decode",
        "prefill",
    ]
    assert found["collectives"]["all-gather"]["count"] == 2 * 7 * 3 + 2
    assert found["collectives"]["reduce-scatter"]["count"] == 7 * 3 + 2
    assert found["collectives"]["all-reduce"]["largest_mib"] <= 1
    assert 1.1 < found["executed_of_theory"] < 1.6 and (found["kernel_flops"] > 0) == (found["chip"] == "v5e")
    assert 1.0 < found["executed_of_theory_with_scoring"] < found["executed_of_theory"]
    assert 0 < found["mfu"] < found["hfu"] < 1 and found["decode"]["milliseconds"] > 0
    assert ("NVLink" in found["assumed"]) == (found["chip"] == "H100")


def test_ways_in_which_steps_may_follow_each_other_are_compared(tmp_path: Path) -> None:
    """On shared devices and with devices of the engine's own, those that fit; with lengths of a run or stated ones."""
    more = ("--on", "8xH100", "--quick", "--json")
    result = CliRunner().invoke(app, ["plan", "configs/ssp/qwen2.5-7b.toml", *more, "--async", "512:1500:800"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout.splitlines()[-1])["overlaps"]
    by_way = {(row["mode"], row["engine_devices"]): row for row in rows}
    assert ("one step ahead", None) not in by_way and {None, 4} <= {devices for _, devices in by_way}
    shared = [by_way[mode, None] for mode in ("synchronous", "max_staleness = 1", "max_staleness = 2")]
    assert shared[0]["seconds"] > shared[1]["seconds"] >= 0.98 * shared[2]["seconds"] >= 0.95 * shared[2]["bound"]
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert "max_staleness = 2" in result.stderr and "(4 devices generate)" in result.stderr
    (tmp_path / "run").mkdir()
    episodes = [
        {"step": step, "role": "solver", "group": "", "reward": 0.0, "parts": {}, "advantage": 0.0, "trained": True,
         "tokens": 40, "sampled": 10, "text": {}}
        for step in (1, 2) for _ in range(6)
    ]  # fmt: skip
    LineWriter(tmp_path / "run" / EPISODES).add(episodes)
    lengths = lengths_of(str(tmp_path / "run"), 512)
    assert lengths.count == 6 and lengths.trained == 240 and {*lengths.rows} == {RowTokens(30, 10)}
    for stated in ("nowhere", "512:300", "0:1:1", "4:600:5", "a:b:c"):
        assert "--async is" in refused("configs/ssp/atlas.toml", "--quick", "--on", "1xH100", "--async", stated)


def test_train_refuses_a_card_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence is that of the plan, and no run folder is made."""
    monkeypatch.setattr("scope_jax.plan.hardware.hardware", lambda on: absent(1, 0.001))
    run = tmp_path / "run"
    result = CliRunner().invoke(app, ["train", CARD, "--run", str(run), "--plan-first", *SETS])
    assert result.exit_code == 2, result.output
    assert "does not fit: it needs" in result.stderr.splitlines()[-1]
    assert not run.exists()


def test_a_run_says_what_it_takes_and_is_refused_where_that_cannot_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By arithmetic, for the card as it is given, before anything is loaded. What may fit goes on, with a warning."""

    def loop(cfg: Config, folder: Path, progress: Progress, *options: Any) -> None:
        before, _ = options[-2:]
        before(cfg)
        raise UserError("the run went on.")

    monkeypatch.setattr("scope_jax.train.train", loop)
    sizes = "of 256 tokens; micro-batches of 8 rows, of up to 256 tokens"

    def lines_with(gib: float, slots: int) -> list[str]:
        monkeypatch.setattr("scope_jax.plan.hardware.started", lambda: absent(1, gib))
        words = ["train", CARD, "--run", str(tmp_path / "run"), *SETS, "--set", f"rollout.slots={slots}"]
        return CliRunner().invoke(app, words).stderr.splitlines()

    *_, refused = lines_with(0.05, 256)
    slots = f"rollout.slots = 256, {sizes}"
    assert f"weights, states and cache alone take 0.17 GiB of a device ({slots}), and it has 0.05 GiB" in refused
    assert "and it has 0.05 GiB; it fits with --set rollout.cache_gib=" in refused
    took, short, end = lines_with(0.03, 16)
    assert took.startswith("memory of a device: about 0.04 GiB at most, in the phase 'learn', of 0.03 GiB")
    assert short.startswith("warning: memory is short: configs/ssp/atlas.toml on 1xH100")
    assert end == "scope-jax: the run went on."
    took, end = lines_with(80, 16)
    assert f"rollout.slots = 16, {sizes}" in took and end == "scope-jax: the run went on."


def test_memory_beside_the_devices_is_looked_at_as_well() -> None:
    small, mismatched = replace(absent(1, 80), host=2**29), ["rollout.slots=16", "mesh.tensor=3"]
    enough, short = (at_start(Path(CARD), SMALL, replace(small, host=host)) for host in (2**32, 2**29))
    assert enough is not None and len(statements(enough)) == 1
    assert short is not None and "at least 0.73 GiB of this machine's memory" in statements(short)[1]
    assert at_start(Path(CARD), mismatched, small) is None and at_start(Path(CARD), SMALL, None) is None
    unknown = replace(small, chip=replace(small.chip, hbm=0.0))  # of a system that does not say
    assert at_start(Path(CARD), SMALL, unknown) is None
    said = outline(enough)
    assert (said["on"], said["peak_gib"], said["phase"]) == ("1 x H100", enough["peak_gib"], enough["phase"])
    assert said["generated_tokens_per_second"] == enough["decode"]["tokens_per_second"] > 0
    assert said["trained_tokens_per_second"] == enough["tokens_per_device"] / enough["seconds"] > 0
    cpu = at_start(Path(CARD), SMALL, started())
    assert cpu is not None and statements(cpu)[1:] == [SLOW_DTYPE]
    exact = at_start(Path(CARD), [*SMALL, "model.compute_dtype=float32"], started())
    assert exact is not None and len(statements(exact)) == 1
    assert cpu is not None and outline(cpu)["trained_tokens_per_second"] is None and outline(cpu)["peak_gib"] > 0


def test_states_and_gradients_that_cannot_fit_are_refused_with_the_key() -> None:
    """In float32: weights, two moments, gradients; no reference fits beside them in less than the states take."""
    few = [*SMALL, "rollout.slots=1"]
    with pytest.raises(UserError, match=r"weights, states and gradients alone take .* model\.adapter\.rank=16"):
        at_start(Path(CARD), few, absent(1, 0.005))
