"""The comparison with other libraries: plans and FLOPs by hand, the busy check, fake workers, the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import cases, machine
from benchmarks.peers.__main__ import check_same, interpreters, main
from benchmarks.peers.client import ROOT, Client
from benchmarks.peers.machine import Usage
from benchmarks.peers.measure import Measured, Settings, measure
from benchmarks.peers.table import best_peer, summary, table
from benchmarks.peers.worker import Cannot, Work, serve
from scope_jax.errors import UserError


# ------------------------------------------------------------------------------------------------------------ cases
def test_plans_have_the_lengths_that_are_documented():
    fixed, ragged, group = (cases.generation(case) for case in cases.GENERATION)
    assert (fixed.prompts_PT.shape, fixed.tokens, len(fixed.batches())) == ((16, 64), 16 * 128, 1)
    assert (group.prompts_PT.shape, group.tokens, group.batches()[0][0].shape) == ((4, 64), 64 * 128, (64, 64))
    assert len(ragged.lengths) == 64
    assert min(ragged.lengths) >= 16
    assert max(ragged.lengths) <= 128
    assert 44 <= np.mean(ragged.lengths) <= 52
    assert [longest for _, longest in ragged.batches()] == [max(ragged.lengths[at : at + 16]) for at in (0, 16, 32, 48)]
    step = cases.generation("step")
    assert step.tokens == cases.tokens("step") == cases.tokens("update") == 2048
    assert np.array_equal(step.batches()[0][0][:4], np.repeat(step.prompts_PT[:1], 4, axis=0))
    for case, (prompt, answer) in cases.SHARED.items():
        ids_BT, advantages_B = cases.rows(case)
        assert ids_BT.shape == (8, prompt + answer) and len(advantages_B) == 8
        assert (ids_BT[:, :prompt] == ids_BT[0, :prompt]).all() and len({*ids_BT[:, prompt].tolist()}) > 4


def test_flops_by_hand():
    # A token: 4 layers · 2 · 256 · (q, o: 2 · 256; k, v: 2 · 128; 3 · 768) = 6,291,456; its logits 2 · 256 · 4,096
    assert cases.forward_flops(1, 1, 0, 0.0) == (6_291_456, 2_097_152)
    # and 4 layers · 4 · 192 · 256 for scores and values of a row of 192, half of it causal
    assert cases.forward_flops(1, 0, 192, 0.5) == (6_291_456 + 393_216, 0)
    assert cases.useful_flops("fixed") == 2048 * 8_388_608
    forward = 3072 * 6_684_672 + 2048 * 2_097_152
    assert cases.useful_flops("update") == 4 * forward
    assert cases.useful_flops("update_old") == 5 * forward
    assert cases.useful_flops("step") == 4 * forward + 2048 * 8_388_608
    # 8 answers of 64 to a prompt of 512: half of 512² pairs once, half of 576² − 512² for each answer
    pairs = 512**2 // 2 + 8 * (576**2 - 512**2) // 2
    assert cases.tokens("shared_512") == 512
    shared = 1024 * 6_291_456 + 4 * 4 * 256 * pairs + 512 * 2_097_152
    assert cases.useful_flops("shared_512") == pytest.approx(4 * shared, rel=1e-12)


def test_a_reward_and_the_codec():
    assert cases.reward([2, 3, 4, 8]) == 0.75
    assert cases.Numbers().encode(cases.Numbers().decode([5, 0, 4095])) == [5, 0, 4095]


# ---------------------------------------------------------------------------------------------------------- machine
STAT = "cpu  100 20 30 5000 7 3 2 4 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"


def test_busy_time_of_the_machine_and_of_a_tree_of_processes():
    assert machine.busy_ticks(STAT) == 100 + 20 + 30 + 3 + 2 + 4  # not idle, not waiting; guests are in user already
    assert machine.process_ticks("7 (a ) b) S 3 7 7 0 -1 0 1 2 3 4 50 6 70 8 20 0 9") == (3, 50 + 6 + 70 + 8)
    processes = {3: (1, 10), 7: (3, 5), 8: (7, 2), 9: (1, 100)}
    assert machine.tree_ticks(processes, 3) == 17
    assert machine.tree_ticks(processes, 4) == 0


def test_the_share_of_others():
    # Two seconds of two cores: 3 CPU seconds were used, 2.9 of them by the participant.
    assert machine.others_share(Usage(5, 100, 10), Usage(7, 103, 12.9), 2) == pytest.approx(0.1 / 4)
    assert machine.others_share(Usage(5, 100, 10), Usage(7, 103, 13.1), 2) == 0.0  # ticks are rounded


def test_this_process_is_seen():
    before = machine.usage(1)
    after = machine.usage(1)
    assert after.clock > before.clock
    assert after.machine >= before.machine > 0


# ----------------------------------------------------------------------------------------------------------- worker
class Fake:
    """A participant that counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def versions(self) -> dict[str, str]:
        return {"fake": "1"}

    def logprob(self) -> float:
        return -8.25

    def prepare(self, case: str, variant: str) -> Work:
        if case == "ragged":
            raise Cannot("it cannot.")
        if case == "group":
            raise RuntimeError("broken")

        def run() -> int:
            self.runs += 1
            return 2048

        return run


def orders(*asked: dict[str, str]) -> tuple[int, list[dict[str, Any]], Fake]:
    """(exit code, replies, the participant) of a worker that is asked these."""
    fake, replies = Fake(), []
    code = serve(lambda: fake, map(json.dumps, asked), replies.append)
    return code, replies, fake


def test_a_worker_prepares_with_two_runs_and_then_runs_once():
    fixed = {"case": "fixed", "variant": ""}
    code, replies, fake = orders(
        {"do": "hello"}, {"do": "prepare"} | fixed, {"do": "run"} | fixed, {"do": "quit"}, {"do": "run"} | fixed
    )
    assert (code, fake.runs) == (0, 3)
    assert replies[:2] == [{"versions": {"fake": "1"}, "logprob": -8.25}, {"ready": True}]
    assert replies[2]["tokens"] == 2048
    assert 0 <= replies[2]["seconds"] < 1
    assert len(replies) == 3


def test_a_worker_says_what_it_cannot_do_and_what_went_wrong():
    cannot, broken = ({"do": "prepare", "case": case, "variant": ""} for case in ("ragged", "group"))
    assert orders(cannot)[:2] == (0, [{"cannot": "it cannot."}])
    assert orders(broken, cannot)[:2] == (1, [{"error": "RuntimeError: broken"}])


PARTICIPANT = """
from benchmarks.peers.worker import Cannot

class Participant:
    def __init__(self, folder):
        print("noise of a library", folder)
    def prepare(self, case, variant):
        raise Cannot("it cannot.")
"""


def test_a_worker_as_a_process_keeps_its_output_for_replies(tmp_path: Path):
    (tmp_path / "fake_participant.py").write_text(PARTICIPANT)
    command = [sys.executable, "-m", "benchmarks.peers.worker", "fake_participant", "weights"]
    order = json.dumps({"do": "prepare", "case": "fixed", "variant": ""}) + "\n"
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(command, input=order, env=os.environ | path, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"cannot": "it cannot."})
    assert "noise of a library weights" in done.stderr


# ----------------------------------------------------------------------------------------------------- orchestrator
# Replies at once; TRL's does not do `ragged`.
SCRIPT = """
import json, sys
name, seconds = sys.argv[1], float(sys.argv[2])
for line in sys.stdin:
    order = json.loads(line)
    if order["do"] == "run":
        tokens = 10 if order["case"] == "matmul" else 2048
        reply = {"seconds": 0.2 if order["case"] == "matmul" else seconds, "tokens": tokens}
    elif order["do"] == "prepare" and (name, order["case"]) == ("trl", "ragged"):
        reply = {"cannot": "no such thing."}
    elif order.get("case") == "group":
        print("the reason", file=sys.stderr, flush=True)
        sys.exit(3)
    else:
        reply = {"ready": True}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, Client]]:
    made = {
        name: Client(name, [sys.executable, "-S", "-c", SCRIPT, name, seconds], tmp_path / name)
        for name, seconds in (("ours", "0.5"), ("trl", "1.25"))
    }
    yield made
    for client in made.values():
        client.close()


def shares(*values: float) -> Callable[[int], Usage]:
    """Usages such that each run has the next of these shares of others, then none."""
    state = {"calls": 0, "machine": 0.0}

    def usage(_: int) -> Usage:
        run, after = divmod(state["calls"], 2)
        state["calls"] += 1
        state["machine"] += after * machine.cores() * (values[run] if run < len(values) else 0.0)
        return Usage(float(state["calls"]), state["machine"], 0.0)

    return usage


def silent(text: str) -> None:
    """Says nothing."""


def test_repetitions_on_a_busy_machine_are_repeated(processes: dict[str, Client]):
    said: list[str] = []
    # matmul, ours, TRL; then ours of the second repetition is disturbed, and the third is quiet
    usage = shares(0.0, 0.04, 0.01, 0.02, 0.051)
    measured = measure("fixed", processes, Settings(2, 1, False), said.append, usage, settle=0.0)
    assert measured.seconds == {"ours": [0.5, 0.5], "TRL": [1.25, 1.25]}
    assert measured.matmul == pytest.approx([10 * cases.MATMUL_FLOPS / 0.2] * 2)
    assert (measured.rejected, measured.others) == (1, pytest.approx(0.04))
    assert any("rejected" in line for line in said)


def test_a_machine_that_stays_busy_ends_the_measurement(processes: dict[str, Client]):
    with pytest.raises(UserError, match=r"2 repetitions were rejected because others used more than 5% of the cores"):
        measure("fixed", processes, Settings(2, 1, False), silent, shares(0.5, 0.5), settle=0.0)


def test_on_request_a_busy_machine_counts(processes: dict[str, Client]):
    measured = measure("fixed", processes, Settings(1, 0, True), silent, shares(0.5), settle=0.0)
    assert (len(measured.seconds["ours"]), measured.others) == (1, pytest.approx(0.5))


def test_generate_is_compiled_on_request(processes: dict[str, Client]):
    as_torch = {"ours": processes["ours"], "torch": processes["trl"]}
    both = ["ours", "generate, dynamic cache", "generate, static cache"]
    for compiled, names in ((False, both), (True, [*both, "generate, static cache, compiled"])):
        measured = measure("fixed", as_torch, Settings(1, 0, True, compiled), silent, shares(), settle=0.0)
        assert list(measured.seconds) == names


def test_faults_of_a_participant_are_sentences(processes: dict[str, Client], tmp_path: Path):
    with pytest.raises(UserError, match=r"ours did 2048 tokens of ragged, not"):
        measure("ragged", processes, Settings(1, 0, True), silent, shares(), settle=0.0)
    with pytest.raises(UserError, match=r"ours ended while it was asked to prepare; the end of its log:\nthe reason"):
        measure("group", processes, Settings(1, 0, True), silent, shares(), settle=0.0)
    with pytest.raises(UserError, match=r"trl: no/such/python cannot be started"):
        Client("trl", ["no/such/python"], tmp_path / "log")


def test_peers_on_the_command_line(capsys: pytest.CaptureFixture[str]):
    assert interpreters(["trl=/a", "tunix=/b"]) == {"ours": sys.executable, "torch": sys.executable} | {
        "trl": "/a",
        "tunix": "/b",
    }
    for wrong in (["verl=/a"], ["trl"], ["trl=/a", "trl=/b"], ["ours=/a"]):
        assert main([part for peer in wrong for part in ("--peer", peer)]) == 2
        assert "is not trl=PYTHON or tunix=PYTHON" in capsys.readouterr().err


def test_participants_with_different_models_are_refused():
    check_same({"ours": -8.31771, "trl": -8.31775})
    with pytest.raises(UserError, match=r"trl has a mean log-prob of -8\.317000, ours -8\.318000: not one model\."):
        check_same({"ours": -8.318, "trl": -8.317})


# ------------------------------------------------------------------------------------------------------------ table
MEASURED = Measured(
    "fixed",
    seconds={"ours": [0.5, 0.4, 0.5], "TRL": [1.0, 1.2, 1.5], "Tunix": [1.5, 1.0, 2.0]},
    matmul=[2e11, 1e11, 2e11],
    others=0.031,
    rejected=2,
)


def test_ratios_are_taken_within_a_repetition():
    # Fastest peers: TRL, Tunix, TRL: 1.0/0.5 = 2, 1.0/0.4 = 2.5, 1.5/0.5 = 3
    assert best_peer(MEASURED) == (["TRL", "Tunix"], 2.5)
    assert best_peer(Measured("fixed", {"ours": [1.0]}, [1e11])) is None
    result = summary(MEASURED)
    assert (result["times_best_peer"], result["rejected"], result["others_share_max"]) == (2.5, 2, 0.031)
    ours, trl = result["contenders"]["ours"], result["contenders"]["TRL"]
    assert (ours["seconds"], ours["tokens_per_second"], ours["ours_is_times_as_fast"]) == (0.5, 4096.0, 1.0)
    assert (trl["seconds"], trl["ours_is_times_as_fast"]) == (1.2, 3.0)
    # 17.18 GFLOP in 0.5, 0.4, 0.5 s of 200, 100, 200 GFLOP/s: 0.1718, 0.4295, 0.1718
    assert ours["share_of_peak"] == 0.1718


def test_the_table():
    cannot = Measured("update", {"ours": [0.5], "Tunix": [0.75]}, [1e11], cannot={"TRL": "no way."})
    assert table([MEASURED, cannot]).splitlines() == [
        "| case | ours | TRL | Tunix | ours, × the best peer | ours, share of the matmul peak |",
        "|---|---|---|---|---|---|",
        "| fixed | 4,096 | 1,707 | 1,365 | 2.50 (TRL, Tunix) | 0.17 |",
        "| update | 0.50 s | – [1] | 0.75 s | 1.50 (Tunix) | 1.99 |",
        "",
        "[1] TRL: no way.",
    ]
