#!/bin/sh
# Experiments as a Slurm array job: each task measures a shard, and Slurm runs a killed one again.
#
#     sbatch --array=1-8 slurm.sh FOLDER EXPERIMENT... [OPTIONS of picnic lab run]
#
# The array must begin at 1. FOLDER is on a file system that all nodes have; a task's points are in
# FOLDER/part-I, and a task that runs again measures only what is missing there.
#SBATCH --job-name=picnic-lab
#SBATCH --array=1-4
#SBATCH --requeue
#SBATCH --open-mode=append

folder=$1
shift
part=$folder/part-$SLURM_ARRAY_TASK_ID
if [ -e "$part/run.json" ]; then
    set -- --resume "$part"
else
    set -- "$@" --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --out "$part"
fi
"${PICNIC:-picnic}" lab run "$@"
code=$?
# Killed, which is not the measurement's fault: up to three times again.
if [ "$code" -gt 128 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
