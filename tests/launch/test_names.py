"""Names in [launch] reach the command lines of other programs: none can be an option, or anything but a name."""

from __future__ import annotations

import json

import pytest

from launch import run as launcher
from scope_jax.config import CardError
from scope_jax.games import load_card
from tests.launch.test_launch import CARD, GKE, POD, RUN

HOSTS = [  # each would be an option, a second word, a command or no host for ssh
    *("-oProxyCommand=touch ran", "-oProxyCommand=reboot", "-lroot", "-", "--", "-F/tmp/config", "me@-oProxyCommand=x"),
    *("-l@node0", "@node0", "me@", "", " node0", "node0 reboot", "node0\n-v", "node0\t", "node0\0", "node0;reboot"),
    *("$(reboot)", "`reboot`", "node0&", "ssh://-oProxyCommand=x", "ssh://node0", "node0:22", "[::1]", "%h", "node0%x"),
    *("a'b", '"', "a@b@-c", "me;x@node0", "n\u00f6de", "\u200bnode0", "\u2010oProxyCommand=x", "fe80::1%$(reboot)"),
]


@pytest.mark.parametrize("host", HOSTS)
def test_nothing_but_a_host_is_a_host(host: str) -> None:
    with pytest.raises(CardError) as caught:
        load_card(CARD, [f"launch.gpu_node.hosts=['node0', {json.dumps(host)}]"])
    assert "launch.gpu_node.hosts" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["node0", "me@node0.lab", "10.0.0.5", "gpu_3", "root@fd00::5", "a.b-c@N1", "_n"])
def test_hosts_and_what_the_others_call_the_first(host: str, capsys) -> None:
    given = ["launch.kind=gpu-node", f"launch.gpu_node.hosts=['{host}', 'node9']"]
    sets = [word for override in given for word in ("--set", override)]
    assert launcher.main([CARD, "--run", RUN, *sets, "--print"]) == 0
    text = capsys.readouterr().out
    assert f" -- {host} " in text
    name = host.rpartition("@")[2]
    assert f"JAX_COORDINATOR_ADDRESS={f'[{name}]' if ':' in name else name}:8476" in text.replace("'", "")


NAMES = {
    "launch.slurm": ("partition", "account", "qos"),
    "launch.tpu_pod": ("name", "project", "zone", "tpu_type", "image", "runtime_version"),
    "launch.gke_jobset": (
        *("project", "location", "cluster", "tpu_type", "image", "namespace", "queue", "service_account"),
    ),
}


@pytest.mark.parametrize("value", ["-v/:/host", "--privileged", "-", "--flags-file=/tmp/x", "--impersonate=me"])
@pytest.mark.parametrize("name", [f"{table}.{key}" for table, keys in NAMES.items() for key in keys])
def test_no_name_of_a_launch_is_an_option(name: str, value: str) -> None:
    tables = [f"launch.tpu_pod={POD}}}", f"launch.gke_jobset={GKE}}}"]
    with pytest.raises(CardError, match=name.rpartition(".")[2]):
        load_card(CARD, [*tables, f"{name}='{value}'"])
