# shellcheck shell=bash
# The part of a job script for PBS Pro and OpenPBS: source it, then call trireme_job train FILE.yaml.. (or trireme_ladder).
# It also runs where Slurm's qsub took the script. What can be set is at the top of share/job/job.sh; besides:
#   TRIREME_WALLTIME     the job's limit in seconds, for where qstat cannot be asked from a node
#   TRIREME_SCRIPT       this script's own path: what is submitted again when the job has to go on
#   TRIREME_NO_REQUEUE   anything: end with the code instead of submitting again
set -uo pipefail
cd "${PBS_O_WORKDIR:-${SLURM_SUBMIT_DIR:-$PWD}}" || exit 74
trireme_home=${TRIREME_HOME:-$PWD}
# shellcheck source=share/job/job.sh
. "$trireme_home/share/job/job.sh"

trireme_job_id=${PBS_JOBID:-${SLURM_JOB_ID:?this script is for qsub}}
if [[ -r ${PBS_NODEFILE:-} ]]; then
  trireme_ranks=${TRIREME_RANKS:-$(grep -c . "$PBS_NODEFILE")}
  trireme_nodes=$(sort -u "$PBS_NODEFILE" | grep -c .)
else
  trireme_ranks=${TRIREME_RANKS:-${SLURM_NTASKS:-1}}
  trireme_nodes=${SLURM_JOB_NUM_NODES:-1}
fi

# Which MPI's mpiexec this is: openmpi, pals, or hydra (MPICH, Intel MPI).
trireme_mpiexec_kind() {
  local text
  text=$("$1" --version 2>&1 | head -n 3)
  case $text in
    *'Open MPI'* | *OpenRTE* | *PRRTE* | *prterun*) echo openmpi ;;
    *PALS* | *pals*) echo pals ;;
    *) echo hydra ;;
  esac
}

# Sets trireme_launch and trireme_launch_nodes for so many ranks.
trireme_launch_words() { # RANKS
  local per_node=$(((trireme_ranks + trireme_nodes - 1) / trireme_nodes)) default=mpiexec name
  trireme_launch_nodes=$((($1 + per_node - 1) / per_node))
  # Slurm's qsub: the job is Slurm's, and so are its nodes.
  if [[ -z ${PBS_NODEFILE:-} && -n ${SLURM_JOB_ID:-} ]]; then default="srun --mpi=${TRIREME_SRUN_MPI:-pmix}"; fi
  read -ra trireme_launch <<<"${TRIREME_LAUNCHER:-$default}"
  case $(basename "${trireme_launch[0]}") in
    srun)
      trireme_term_reaches_ranks=yes
      trireme_launch+=(--kill-on-bad-exit=0 --wait=30 --ntasks="$1")
      ;;
    mpiexec | mpirun)
      case $(trireme_mpiexec_kind "${trireme_launch[0]}") in
        openmpi)
          trireme_launch+=(-n "$1" --map-by "ppr:$per_node:node")
          if [[ -r ${PBS_NODEFILE:-} ]]; then trireme_launch+=(--hostfile "$PBS_NODEFILE"); fi
          # To other nodes Open MPI hands down only what it is told to.
          for name in "${trireme_names[@]}"; do trireme_launch+=(-x "$name"); done
          ;;
        pals) trireme_launch+=(-n "$1" --ppn "$per_node") ;;
        hydra)
          trireme_launch+=(-n "$1" -ppn "$per_node")
          if [[ -r ${PBS_NODEFILE:-} ]]; then trireme_launch+=(-f "$PBS_NODEFILE"); fi
          ;;
      esac
      ;;
    *) trireme_launch+=(-n "$1") ;;
  esac
  # shellcheck disable=SC2206
  trireme_launch+=("${trireme_site_flags[@]}" ${TRIREME_LAUNCH_FLAGS:-})
}

# One process on each node, whatever starts processes here.
trireme_on_nodes() {
  local ranks=$trireme_ranks code=0
  if [[ -n ${PBS_NODEFILE:-} ]] && command -v pbsdsh >/dev/null; then
    # pbsdsh counts from each line of the node file; the first line of each node is enough.
    local line=0 host seen=" "
    while read -r host; do
      if [[ $seen != *" $host "* ]]; then
        pbsdsh -n "$line" -- "$@" || code=$?
        seen+="$host "
      fi
      line=$((line + 1))
    done <"$PBS_NODEFILE"
    return "$code"
  fi
  if [[ -z ${PBS_NODEFILE:-} && -n ${SLURM_JOB_ID:-} ]]; then
    srun --nodes="$trireme_nodes" --ntasks="$trireme_nodes" --ntasks-per-node=1 --mpi=none "$@"
    return
  fi
  trireme_ranks=$trireme_nodes
  trireme_launch_words "$trireme_nodes"
  trireme_ranks=$ranks
  "${trireme_launch[@]}" "$@"
}
trireme_copy_to_nodes() { trireme_on_nodes cp -rf "$1" "$2"; }

# PBS lets only operators rerun a job, so it is submitted again, to start when this one has ended. Not after TERM: then PBS
# reruns it by itself (preemption, with -r y), or a person deleted it.
trireme_again() {
  local retries=()
  if [[ -n ${TRIREME_NO_REQUEUE:-} ]]; then return; fi
  if [[ $trireme_signal == TERM ]]; then
    trireme_say "PBS ended the job: it is not submitted again"
    return
  fi
  if [[ -z ${TRIREME_SCRIPT:-} || ! -r ${TRIREME_SCRIPT:-} ]]; then
    trireme_say "qsub the same script again to go on (TRIREME_SCRIPT would have named it)"
    return
  fi
  if [[ -s $(trireme_retries_file) ]]; then retries=(-v "TRIREME_RETRIES=$(cat "$(trireme_retries_file)")"); fi
  rm -f "$(trireme_retries_file)"
  trireme_say "submitted again: $(qsub -W "depend=afterany:$trireme_job_id" "${retries[@]}" "$TRIREME_SCRIPT" 2>&1)"
}

# "01:02:03" or "02:03" in seconds.
trireme_seconds() { awk -F: -v t="$1" 'BEGIN {n = split(t, p, ":"); s = 0; for (i = 1; i <= n; i++) s = s * 60 + p[i]; print s}'; }

# PBS sends nothing before the end, so trireme itself watches the clock: this tells it when.
trireme_find_end() {
  local text limit used
  if [[ -n ${TRIREME_JOB_END_TIME:-}${SLURM_JOB_ID:-} ]]; then return; fi
  if text=$(timeout 20 qstat -f "$trireme_job_id" 2>/dev/null); then
    limit=$(sed -n 's/^ *Resource_List.walltime = //p' <<<"$text")
    used=$(sed -n 's/^ *resources_used.walltime = //p' <<<"$text")
  fi
  if [[ -n ${limit:-} ]]; then
    export TRIREME_JOB_END_TIME=$(($(date +%s) + $(trireme_seconds "$limit") - $(trireme_seconds "${used:-0}")))
  elif [[ -n ${TRIREME_WALLTIME:-} ]]; then
    export TRIREME_JOB_END_TIME=$(($(date +%s) + TRIREME_WALLTIME))
  else
    trireme_say "the job's end is not known: set TRIREME_WALLTIME, or it will be killed without a last checkpoint"
  fi
}

trireme_prepare() {
  trireme_find_end
  if [[ -n ${TRIREME_RETRIES:-} && ! -s $(trireme_retries_file) ]]; then
    echo "$TRIREME_RETRIES" >"$(trireme_retries_file)"
  fi
  # Variables of a rank, frozen here, would be wrong in every other.
  unset RANK LOCAL_RANK WORLD_SIZE
  trireme_say "PBS job $trireme_job_id: $trireme_ranks ranks on $trireme_nodes nodes"
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
