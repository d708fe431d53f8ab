#!/bin/sh
# A training in a container and a server outside share a GPU, and the training is killed.
#
#   contained_test.sh PYTHON SOURCE SEXPLKMD INTERPOSER SHARE_CLIENT DRIVER_DIRECTORY
#
# sxrun, manager and interposer are the real ones, the driver is the double. The container has user, PID and mount
# namespaces of its own, of the machine's files only the system's and what APPTAINER_BIND names, and of the environment
# only APPTAINERENV_*, as `apptainer exec --containall --cleanenv` has.
set -eu
python=$1 source=$2 manager=$3 interposer=$4 client=$5 driver=$6
if ! unshare --user --map-root-user --mount --pid --fork true; then
  echo "not tested: no namespaces for users here"
  exit 77
fi
work=$(mktemp -d)
mkdir -m 700 "$work/km" "$work/progress"
trap 'kill $pids 2>/dev/null || true; wait; rm -rf "$work"' EXIT
pids=
status() { "$manager" --status --dir "$work/km"; }
fail() { echo "contained_test: $*; the manager says: $(status)" >&2; exit 1; }
field() { status | tr '{' '\n' | sed -n "s/.*\"pid\": \([0-9]*\),.*\"class\": \"$1\".*\"launches\": \([0-9]*\),.*/\\$2/p"; }
wait_until() { # CONDITION...
  for _ in $(seq 200); do
    if "$@"; then return; fi
    sleep 0.05
  done
  fail "never $*"
}
answers() { status >/dev/null 2>&1; }
launched() { # CLASS COUNT: more kernels than that
  count=$(field "$1" 2)
  [ "${count:-0}" -gt "$2" ]
}
gone() { answers && [ -z "$(field "$1" 1)" ]; }

"$manager" --dir "$work/km" --foreground --profiles "$work/profiles" &
pids=$!
wait_until answers
export EXPLSCHED_KM_SOCKET="$work/km/kernel-manager.sock" EXPLSCHED_INTERCEPT_LIBRARY="$interposer" \
  EXPLSCHED_PROGRESS_FILE="$work/progress/1" EXPLSCHED_SPOOL="$work/progress" SLURM_TMPDIR="$work" SLURM_JOB_ID=1 \
  LD_LIBRARY_PATH="$driver" FAKECUDA_GPU="$work/progress/gpu" PYTHONPATH="$source" WORK="$work" DRIVER="$driver"
now=$("$python" -c 'import time; print(time.monotonic_ns())')

"$python" -m wrappers.sxrun --share high -- "$client" 'serve*20' 2 "$now" 60 >"$work/server" &
pids="$pids $!"

# shellcheck disable=SC2016  # the container's shell expands it
container='
root=$WORK/root
mkdir "$root"
mount -t tmpfs none "$root"
image="/usr /etc $DRIVER $0"
for path in $image $(echo "$APPTAINER_BIND" | tr , " "); do
  if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}" && : >"$root$path"; fi
  mount --rbind "$path" "$root$path"
done
for path in /bin /lib /lib64; do if [ -e "$path" ]; then cp -Pd "$path" "$root$path"; fi; done
mkdir "$root/proc"
mount -t proc proc "$root/proc"
given=$(env | sed -n "s/^APPTAINERENV_//p")
exec env -i LD_LIBRARY_PATH="$DRIVER" FAKECUDA_GPU="$FAKECUDA_GPU" $given /usr/sbin/chroot "$root" "$0" "$@"'
"$python" -m wrappers.sxrun --share best-effort -- unshare --user --map-root-user --mount --pid --fork --kill-child \
  sh -euc "$container" "$client" 'train*50' 0 "$now" 60 >"$work/training" &
pids="$pids $!"

wait_until launched best-effort 0
wait_until launched high 0
contained=$(field best-effort 1)
[ "$(readlink "/proc/$contained/ns/pid")" != "$(readlink /proc/self/ns/pid)" ] || fail "$contained is in no container"
kill -9 "$contained"
wait_until gone best-effort
wait_until launched high $(($(field high 2) + 1000)) # the server goes on
