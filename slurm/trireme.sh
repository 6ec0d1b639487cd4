# shellcheck shell=bash
# Slurm's part of a job script: source it, then call trireme_job train FILE.yaml.. (or trireme_ladder). What can be set is
# at the top of share/job/job.sh; besides:
#   TRIREME_SRUN_MPI     what srun --mpi= gets (default: pmix where this Slurm has it)
#   TRIREME_NO_REQUEUE   anything: end with the code instead of requeueing
set -uo pipefail
trireme_home=${TRIREME_HOME:-${SLURM_SUBMIT_DIR:-$PWD}}
# shellcheck source=share/job/job.sh
. "$trireme_home/share/job/job.sh"

trireme_job_id=${SLURM_JOB_ID:?this script is for sbatch or salloc}
trireme_nodes=${SLURM_JOB_NUM_NODES:-1}
trireme_ranks=${SLURM_NTASKS:-$trireme_nodes}

trireme_on_nodes() { srun --nodes="$trireme_nodes" --ntasks="$trireme_nodes" --ntasks-per-node=1 --mpi=none "$@"; }

# A file travels from node to node as a tree; a folder is copied by one process on each.
trireme_copy_to_nodes() {
  if [[ -d $1 ]]; then trireme_on_nodes cp -rf "$1" "$2"; else sbcast --force --preserve "$1" "$2"; fi
}

trireme_srun_mpi() {
  if [[ -n ${TRIREME_SRUN_MPI:-} ]]; then
    echo "--mpi=$TRIREME_SRUN_MPI"
  elif srun --mpi=list 2>&1 | grep -qw pmix; then
    echo --mpi=pmix
  fi
}

# Sets trireme_launch and trireme_launch_nodes for so many ranks.
trireme_launch_words() { # RANKS
  local per_node=$(((trireme_ranks + trireme_nodes - 1) / trireme_nodes)) mpi
  trireme_launch_nodes=$((($1 + per_node - 1) / per_node))
  read -ra trireme_launch <<<"${TRIREME_LAUNCHER:-srun}"
  case $(basename "${trireme_launch[0]}") in
    srun)
      trireme_term_reaches_ranks=yes
      mpi=$(trireme_srun_mpi)
      # A rank that ends early has told the others, or they notice; what is left after half a minute is killed. At
      # once would be too soon for those that still write when the first has returned 85.
      trireme_launch+=(--kill-on-bad-exit=0 --wait=30 ${mpi:+"$mpi"})
      # All of the job as sbatch laid it out; a part of it in blocks.
      if (($1 != trireme_ranks)); then
        trireme_launch+=(--nodes="$trireme_launch_nodes" --ntasks="$1" --distribution=block)
      fi
      ;;
    ibrun) trireme_launch+=(-n "$1") ;;
    *) trireme_launch+=(-n "$1") ;;
  esac
  # shellcheck disable=SC2206
  trireme_launch+=("${trireme_site_flags[@]}" ${TRIREME_LAUNCH_FLAGS:-})
}

# Requeues this job, which ends the script. Not when a person has cancelled it: Slurm would bring it back to life. A job that
# reaches its limit or is preempted is still running, or ends late.
trireme_again() {
  local state end
  if [[ -n ${TRIREME_NO_REQUEUE:-} ]]; then return; fi
  state=$(scontrol --oneliner show job "$trireme_job_id" | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p')
  end=${SLURM_JOB_END_TIME:-$trireme_end}
  if [[ $state != RUNNING ]] && (($(date +%s) < end - 30)); then
    trireme_say "the job is $state: it was cancelled, so it is not requeued"
    return
  fi
  trireme_unstage
  trireme_say "requeued as job $trireme_job_id; it goes on from its last checkpoint"
  trap 'exit "$trireme_code"' TERM
  if scontrol requeue "$trireme_job_id"; then
    sleep 300 & # Slurm ends us
    wait
  fi
  trireme_say "could not be requeued: sbatch the same script again to go on"
}

# The job's end as Unix time, from Slurm where it does not say by itself; a far day where it cannot tell.
trireme_ask_end() {
  local left
  left=$(squeue -h -j "$trireme_job_id" -o %L 2>/dev/null)
  echo "$left" | awk -v now="$(date +%s)" '{
    days = 0
    if (split($1, d, "-") == 2) { days = d[1]; $1 = d[2] }
    n = split($1, p, ":")
    if ($1 !~ /^[0-9:]+$/) { print 4000000000; exit }
    s = 0
    for (i = 1; i <= n; i++) s = s * 60 + p[i]
    print now + days * 86400 + s
  }'
}

trireme_prepare() {
  trireme_end=${SLURM_JOB_END_TIME:-$(trireme_ask_end)}
  # sbatch passes on the environment, so that one of an earlier job may be set.
  unset TRIREME_JOB_END_TIME
  if ((trireme_end < 4000000000)); then export TRIREME_JOB_END_TIME=$trireme_end; fi
  # Since 22.05 srun does not take over what sbatch was told.
  if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}; fi
  # Variables of a rank, frozen here, would be wrong in every other.
  unset RANK LOCAL_RANK WORLD_SIZE
  trireme_say "Slurm job $trireme_job_id (start $((${SLURM_RESTART_COUNT:-0} + 1))): $trireme_ranks ranks on" \
    "$trireme_nodes nodes ${SLURM_JOB_NODELIST:-}"
  trireme_named_site "$trireme_nodes"
  trireme_find_binary
  trireme_stage
}

# trireme_job WORDS..: runs trireme with these words on all ranks, and ends the script.
trireme_job() {
  trireme_leave_finished_chain
  trireme_prepare
  trireme_arguments "$@"
  trireme_rank_command "${trireme_words[@]}"
  trireme_launch_words "$trireme_ranks"
  trireme_say "${trireme_launch[*]} ${trireme_command[*]}"
  trireme_watch "${trireme_launch[@]}" "${trireme_command[@]}"
  trireme_unstage
  trireme_finish
}
