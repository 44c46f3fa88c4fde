#!/usr/bin/env bash
# One process of a program on each of several machines, over ssh, and a coordinator.
#
#   HOSTS="10.0.0.1 10.0.0.2 10.0.0.3" ./ssh_launch.sh train.py --steps 1000
#
# Each machine has the program in the same folder, and ssh needs no password. An address that occurs
# twice gets two processes. Lines of output begin with the rank. A process that fails is started
# again, up to RESTARTS times in all. After the next failure the other processes have GRACE_S seconds;
# then, and at once after Ctrl-C or SIGTERM, their connections are closed, and they get SIGHUP. The
# exit code is that of this failure.
#
#   HOSTS                       addresses by which the machines reach each other
#   COORDINATOR_HOST (the first of HOSTS)   of the coordinator, whose end ends all: a machine that is
#                               not preempted, such as this one
#   COORDINATOR_PORT (1234)     a TCP port there; it and the next one are free
#   RESTARTS (0)                new starts of failed processes
#   RESTART_S (10)              seconds from a failure to a new start
#   FOLDER (this one)           the folder of the program
#   PYTHON (python)             an interpreter on the machines, such as .venv/bin/python
#   GRACE_S (5)                 seconds
#   JAX_*, XLA_*                are passed on, and with them the options JAX_OPTIREDUCE_*
set -euo pipefail

if [ -z "${HOSTS:-}" ] || [ $# -eq 0 ]; then
  echo 'usage: HOSTS="ADDRESS ..." ssh_launch.sh PROGRAM [ARGUMENT ...]' >&2
  exit 2
fi
read -r -a hosts <<<"$HOSTS"
folder=${FOLDER:-$PWD}
coordinator=${COORDINATOR_HOST:-${hosts[0]}}
port=${COORDINATOR_PORT:-1234}

settings=()
while read -r name; do
  settings+=("$name=${!name}")
done < <(compgen -e | grep -E '^(JAX|XLA)_' || true)

# The names of the running processes, by the number of their ssh.
declare -A running=()
# start NAME SECONDS HOST [VARIABLE=VALUE ...] ARGUMENT...: a process of Python, after a time.
start() {
  local name=$1 command
  # For the shell of the machine, with every word quoted.
  command=$(
    printf '%q ' cd "$folder"
    printf '&& exec '
    printf '%q ' env "${settings[@]}" PYTHONUNBUFFERED=1 "${@:4}"
  )
  # With a terminal (-tt) the process ends with the connection. That to a lost machine ends, too.
  (
    sleep "$2"
    exec ssh -tt -o BatchMode=yes -o ServerAliveInterval=15 "$3" "$command"
  ) </dev/null > >(sed -u "s/\r\$//; s/^/[$name] /") 2>&1 &
  running[$!]=$name
}

# start_rank RANK SECONDS PROGRAM...
start_rank() {
  start "$1" "$2" "${hosts[$1]}" "JAX_OPTIREDUCE_COORDINATOR=$coordinator:$port" \
    "JAX_NUM_PROCESSES=${#hosts[@]}" "JAX_PROCESS_ID=$1" "${PYTHON:-python}" "${@:3}"
}

ended=0
# end CODE SECONDS: closes the connections after a time; a second failure changes nothing.
end() {
  if [ "$ended" = 0 ]; then
    ended=$1
    sleep "$2"
    kill -TERM "${!running[@]}" 2>/dev/null || true
  fi
}
trap 'end 130 0' INT
trap 'end 143 0' TERM

start coordinator 0 "$coordinator" "${PYTHON:-python}" -m jax_optireduce coordinator \
  --ranks "${#hosts[@]}" --port "$port"
for rank in "${!hosts[@]}"; do
  start_rank "$rank" 0 "$@"
done
restarts=0
# The coordinator runs until all others have ended.
while [ "${#running[@]}" -gt 1 ]; do
  code=0 process=
  wait -n -p process "${!running[@]}" || code=$?
  # A signal ends the wait without a process.
  if [ -z "${process:-}" ]; then continue; fi
  name=${running[$process]}
  unset "running[$process]"
  if [ "$code" = 0 ]; then continue; fi
  if [ "$name" != coordinator ] && [ "$ended" = 0 ] && [ "$restarts" -lt "${RESTARTS:-0}" ]; then
    restarts=$((restarts + 1))
    echo "[launch] rank $name ended with $code; it is started again ($restarts of $RESTARTS)" >&2
    start_rank "$name" "${RESTART_S:-10}" "$@"
  else
    end "$code" "${GRACE_S:-5}"
  fi
done
kill -TERM "${!running[@]}" 2>/dev/null || true
exit "$ended"
