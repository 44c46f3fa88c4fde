#!/usr/bin/env bash
# One process of a program on each of several machines, over ssh; the first one is process 0.
#
#   HOSTS="10.0.0.1 10.0.0.2 10.0.0.3" ./ssh_launch.sh train.py --steps 1000
#
# Each machine has the program in the same folder, and ssh needs no password. An address that occurs
# twice gets two processes. Lines of output begin with the rank. After a failure the other processes
# have GRACE_S seconds; then, and at once after Ctrl-C or SIGTERM, their connections are closed, and
# they get SIGHUP. The exit code is that of the first failure.
#
#   HOSTS                       addresses by which the machines reach each other
#   FOLDER (this one)           the folder of the program
#   PYTHON (python)             an interpreter on the machines, such as .venv/bin/python
#   COORDINATOR_PORT (1234)     a free TCP port on the first machine
#   GRACE_S (5)                 seconds
#   JAX_*, XLA_*                are passed on, and with them the options JAX_OPTIREDUCE_*
set -euo pipefail

if [ -z "${HOSTS:-}" ] || [ $# -eq 0 ]; then
  echo 'usage: HOSTS="ADDRESS ..." ssh_launch.sh PROGRAM [ARGUMENT ...]' >&2
  exit 2
fi
read -r -a hosts <<<"$HOSTS"
folder=${FOLDER:-$PWD}

settings=()
while read -r name; do
  settings+=("$name=${!name}")
done < <(compgen -e | grep -E '^(JAX|XLA)_' || true)

# command_of RANK PROGRAM...: for the shell of the machine, with every word quoted.
command_of() {
  printf '%q ' cd "$folder"
  printf '&& exec '
  printf '%q ' env "${settings[@]}" PYTHONUNBUFFERED=1 \
    "JAX_COORDINATOR_ADDRESS=${hosts[0]}:${COORDINATOR_PORT:-1234}" \
    "JAX_NUM_PROCESSES=${#hosts[@]}" "JAX_PROCESS_ID=$1" "${PYTHON:-python}" "${@:2}"
}

ended=0
processes=()
# end CODE SECONDS: closes the connections after a time; a second failure changes nothing.
end() {
  if [ "$ended" = 0 ]; then
    ended=$1
    sleep "$2"
    for process in "${processes[@]}"; do
      kill -TERM "$process" 2>/dev/null || true
    done
  fi
}
trap 'end 130 0' INT
trap 'end 143 0' TERM

for rank in "${!hosts[@]}"; do
  # With a terminal (-tt) the process ends with the connection.
  ssh -tt -o BatchMode=yes "${hosts[$rank]}" "$(command_of "$rank" "$@")" </dev/null \
    > >(sed -u "s/\r\$//; s/^/[$rank] /") 2>&1 &
  processes+=("$!")
done
for _ in "${processes[@]}"; do
  code=0
  wait -n || code=$?
  if [ "$code" != 0 ]; then end "$code" "${GRACE_S:-5}"; fi
done
exit "$ended"
