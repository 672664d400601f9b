#!/usr/bin/env bash
# A TPU slice of several hosts. Never run on TPU hardware.
#
#   tpu_configs/launch.sh NAME ZONE run COMMAND...           a command on every host
#   tpu_configs/launch.sh NAME ZONE train MODULE FLAGS...    a program on all chips
#
# TensorFlow has one program for all hosts of a slice: on each host a server offers the
# chips, and the program on the first host uses all of them over the network. `train`
# starts the servers (again) and then the program. Expects this repository as the folder
# keras_performer of each host, with its virtual environment in .venv.
set -euo pipefail

if [ $# -lt 4 ] || { [ "$3" != run ] && [ "$3" != train ]; } || [ "${4#-}" != "$4" ]; then
  echo "Usage: $0 NAME ZONE run COMMAND... | $0 NAME ZONE train MODULE FLAGS..." >&2
  exit 2
fi
name=$1 zone=$2 task=$3
shift 3
arguments=$(printf ' %q' "$@") # quoted once more, for the shell of the host
port=8470

tpu() { # SUBCOMMAND FLAGS...
  gcloud compute tpus tpu-vm "$1" "$name" --zone="$zone" "${@:2}"
}

ssh_to() { # HOST|all COMMAND
  tpu ssh --worker="$1" --command="cd keras_performer && . .venv/bin/activate && $2"
}

if [ "$task" = run ]; then
  ssh_to all "${arguments# }"
  exit
fi

addresses=$(tpu describe --format="value(networkEndpoints[].ipAddress)" |
  tr ';' '\n' | sed "s/\$/:$port/" | paste -sd , -)
if [ "$addresses" = ":$port" ]; then
  echo "$name has no addresses: is the slice ready?" >&2
  exit 1
fi
# The old server has to be gone before the new one can have the chips. Plain kill does
# not end it: TensorFlow catches SIGTERM.
ssh_to all "{ if test -f server.pid; then while kill -9 \$(cat server.pid); do sleep 1; \
done 2> /dev/null; fi; true; } && . tpu_configs/environment.sh && \
{ nohup python tpu_configs/server.py $port > server.log 2>&1 < /dev/null & \
echo \$! > server.pid; }"
# The first host's chips belong to its server: the program must not load libtpu too.
ssh_to 0 "TPU_LOAD_LIBRARY=0 python -m$arguments --tpu grpc://$addresses"
