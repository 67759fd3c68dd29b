#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=17
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
# One node more than the job needs: 16 good ones run it, whichever they are. Nodes must accept ssh from each other for
# the user of the job (pam_slurm_adopt allows it while the job runs).
# The command after -- runs only on go, sees NCCL_DOCTOR_HOSTS, NCCL_DOCTOR_NNODES and the recommended environment,
# and its exit code is this script's. If it fails, its output is explained and kept; where its own program is not to blame,
# it is started once more on the nodes that are good then. If it falls silent, the rank that holds it is named on stderr.
set -u
nccl-doctor preflight --slurm --min-hosts 16 --spares 1 --budget 2m --retries 1 --keep "failed.$SLURM_JOB_ID" \
  --require gpus=8,same=torch,nccl,driver \
  --good-hosts "good.$SLURM_JOB_ID" --bad-hosts "bad.$SLURM_JOB_ID" --report "junit=preflight.$SLURM_JOB_ID.xml" \
  -- srun --nodes={nnodes} --ntasks={nnodes} --nodelist={hosts} bash -c '
    exec torchrun --nnodes "$NCCL_DOCTOR_NNODES" --nproc-per-node 8 \
      --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "${NCCL_DOCTOR_HOSTS%%,*}:29500" train.py'
status=$?
if [ "$status" -ne 0 ] && [ -s "bad.$SLURM_JOB_ID" ]; then
  echo "to submit again without the nodes that are not good: sbatch --exclude=$(paste -sd, "bad.$SLURM_JOB_ID") train.sbatch" >&2
fi
exit "$status"
