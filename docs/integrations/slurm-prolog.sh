#!/bin/bash
# Slurm Prolog (slurm.conf: Prolog=/etc/slurm/prolog.d/50-nccl-doctor.sh, PrologFlags=Alloc): runs as root on each node
# of a job and looks at that node alone. A Prolog that fails drains the node and requeues the job, so:
#   - what is wrong with the node, or could not be measured there (exit 3, 4, 10, 11), drains it;
#   - what is wrong with this gate (1 internal error, 2 bad policy or option) is logged and lets the job start: a typo
#     in a policy file must not drain the whole cluster.
# A node that shows no GPU at all is fit for jobs on CPUs: what nodes must have stands in the policy (require = ["gpus=8"]).
# Keep --budget well below PrologEpilogTimeout.
PATH=/opt/nccl-doctor/bin:/usr/sbin:/usr/bin:/sbin:/bin # Slurm gives a Prolog none
export PATH
cd / || exit 0 # no policy file of a job's directory is read here
policy=()
[ -r /etc/nccl-doctor.toml ] && policy=(--policy /etc/nccl-doctor.toml)
metrics=()
[ -d /var/lib/node_exporter/textfile ] && metrics=(--report prometheus=/var/lib/node_exporter/textfile/nccl_doctor.prom)

said=$(nccl-doctor preflight --profile quick --budget 45s --format nhc "${policy[@]}" "${metrics[@]}" 2>&1)
status=$?
case $status in
  0) exit 0 ;;
  3 | 4 | 10 | 11)
    logger -t nccl-doctor-prolog "job ${SLURM_JOB_ID:-?}: no-go ($status): $said"
    echo "print nccl-doctor: $(hostname -s) is unfit (exit $status), see its syslog" # to the job's standard output
    exit 1
    ;;
  *)
    logger -t nccl-doctor-prolog "job ${SLURM_JOB_ID:-?}: the gate itself failed ($status): $said"
    exit 0
    ;;
esac
