#!/usr/bin/env bash
# GPT-2 124M on two nodes of eight GPUs under Slurm, without MPI: sbatch scripts/multi_node/run_gpt2_124M_slurm.sh
# Two minutes before the time is up every rank gets SIGUSR1: the run saves a checkpoint and ends with 75, as it does when
# a rank is lost; it then goes back into the queue and continues from there. Not run on GPUs yet.
#SBATCH --job-name=gpt2_124M
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --output=gpt2_124M_%j.log
set -uo pipefail
cd "$SLURM_SUBMIT_DIR"
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun ./train_gpt --init tcp --init-address "$head_node:29500" --zero 1 \
    --data fineweb10B --output-dir runs/gpt2_124M \
    --model gpt2:124M --micro-batch 32 --seq-len 1024 --total-batch 524288 \
    --lr 6e-4 --warmup 700 --final-lr-frac 0 --weight-decay 0.1 \
    --val-every 250 --sample-every 20000 --checkpoint-every 1000 --keep-checkpoints 3 --resume 1
code=$?
[ $code -eq 75 ] && scontrol requeue "$SLURM_JOB_ID"
exit $code
