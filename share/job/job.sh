# shellcheck shell=bash disable=SC2154
# What job scripts of every scheduler share; slurm/trireme.sh and pbs/trireme.sh source it and add what differs.
#
# It runs one command as a job should: applies a site's settings without overriding anybody's, passes on the signal that
# announces the end, waits, and decides by the exit code whether the job is done, goes on, tries again or stops. It
# changes no file but the chain's and the counter of retries, and prints every decision on standard error. Who sources it
# sets trireme_home, trireme_job_id, trireme_nodes and trireme_ranks, and defines trireme_launch_words, trireme_on_nodes,
# trireme_copy_to_nodes and trireme_again.
#
# Read from the environment, all optional:
#   TRIREME_HOME         the checkout, or PREFIX/share/trireme of an installation
#   TRIREME_BIN          the trireme program
#   TRIREME_SITE         the name of a profile in share/sites, or a file
#   TRIREME_LAUNCHER     the words that start ranks, as in "srun", "mpirun" or "ibrun" (default: found out)
#   TRIREME_LAUNCH_FLAGS more words for it
#   TRIREME_STAGE        "binary": a copy of the program and its libraries on each node; any other words: files or
#                        folders to copy there as well. {local} in an argument becomes the folder that they are in
#   TRIREME_LOCAL        where node-local copies go (default /tmp)
#   TRIREME_CHAIN        the file by which the jobs of a chain tell each other that all is done
#   TRIREME_MAX_RETRIES  how often a job is tried again in a row after a failure that may pass (default 3)

trireme_say() { printf 'trireme job: %s\n' "$*" >&2; }

# ---- site profiles -------------------------------------------------------------------------------------------------

trireme_site_name=none
trireme_site_flags=()   # for the launcher
trireme_site_binding=() # VARIABLE forward|reverse COUNT: one device for each rank of a node
trireme_names=()        # of the variables that ranks on every node must get

# trireme_default NAME VALUE: sets a variable that nobody has set, and says which it was.
trireme_default() {
  trireme_names+=("$1")
  if [[ -n ${!1+set} ]]; then
    trireme_say "site $trireme_site_name: kept $1=${!1} (the profile has $2)"
  else
    export "$1=$2"
    trireme_say "site $trireme_site_name: $1=$2"
  fi
}

# Reads a profile from standard input; the format is described in share/sites/README.md.
trireme_apply_site() { # NAME NODES
  local key name value nodes=$2
  trireme_site_name=$1
  while read -r key name value; do
    case $key in
      set) trireme_default "$name" "$value" ;;
      set-multi-node) if ((nodes > 1)); then trireme_default "$name" "$value"; fi ;;
      launcher) trireme_default TRIREME_LAUNCHER "$name${value:+ $value}" ;;
      mpi) trireme_default TRIREME_SRUN_MPI "$name" ;;
      launch) read -ra flags <<<"$name $value" && trireme_site_flags+=("${flags[@]}") ;;
      bind-gpus) read -ra trireme_site_binding <<<"$name $value" ;;
      module)
        if type module >/dev/null 2>&1; then
          trireme_say "site $trireme_site_name: module load $name"
          module load "$name" || trireme_say "site $trireme_site_name: module $name could not be loaded"
        fi
        ;;
    esac
  done
  if ((${#trireme_site_flags[@]})); then
    trireme_say "site $trireme_site_name: the launcher gets ${trireme_site_flags[*]}"
  fi
}

# The profile that TRIREME_SITE names, unless the script has one written into it.
trireme_named_site() { # NODES
  local site=${TRIREME_SITE:-} file
  if [[ -z $site || $trireme_site_name != none ]]; then return; fi
  file=$site
  if [[ $site != */* ]]; then file=$trireme_home/share/sites/$site.site; fi
  if [[ ! -r $file ]]; then
    trireme_say "there is no site profile $file; share/sites lists them"
    exit 64
  fi
  trireme_apply_site "$(basename "$site" .site)" "$1" <"$file"
}

# ---- the program ---------------------------------------------------------------------------------------------------

# Sets trireme_bin.
trireme_find_binary() {
  local candidate
  for candidate in "${TRIREME_BIN:-}" "$trireme_home/build/release/bin/trireme" "$trireme_home/bin/trireme" \
    "$trireme_home/../../bin/trireme" "$(command -v trireme || true)"; do
    if [[ -n $candidate && -x $candidate ]]; then
      trireme_bin=$candidate
      return
    fi
  done
  trireme_say "no trireme program in TRIREME_BIN, $trireme_home or PATH: set TRIREME_BIN"
  exit 64
}

# The shared libraries of the program that a node is likely to read over the network: all outside the system's folders.
trireme_libraries() { # PROGRAM
  ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// && $3 !~ /^\/(usr\/)?lib(64)?\// {print $3}'
}

# Copies what TRIREME_STAGE names to each node with the adapter's trireme_copy_to_nodes SOURCE TARGET, and then uses it.
trireme_stage() {
  local word library start=$SECONDS
  trireme_local=${TRIREME_LOCAL:-/tmp}/trireme-${trireme_job_id//[^A-Za-z0-9_]/-}
  if [[ -z ${TRIREME_STAGE:-} ]]; then return; fi
  trireme_on_nodes mkdir -p "$trireme_local" || { trireme_say "cannot make $trireme_local on every node"; exit 74; }
  for word in $TRIREME_STAGE; do
    if [[ $word == binary ]]; then
      for library in "$trireme_bin" $(trireme_libraries "$trireme_bin"); do
        trireme_copy_to_nodes "$library" "$trireme_local/$(basename "$library")" || trireme_stage_failed "$library"
      done
      trireme_bin=$trireme_local/$(basename "$trireme_bin")
      trireme_names+=(LD_LIBRARY_PATH)
      export LD_LIBRARY_PATH=$trireme_local${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    else
      trireme_copy_to_nodes "$word" "$trireme_local/$(basename "$word")" || trireme_stage_failed "$word"
    fi
  done
  trireme_say "staged $TRIREME_STAGE into $trireme_local on every node in $((SECONDS - start)) s"
}
trireme_stage_failed() {
  trireme_say "could not copy $1 into $trireme_local on every node"
  exit 74
}
trireme_unstage() {
  if [[ -n ${TRIREME_STAGE:-} ]]; then trireme_on_nodes rm -rf "$trireme_local" || true; fi
}

# Sets trireme_words: the arguments with {local} filled in and --resume auto unless they say how to resume.
trireme_arguments() {
  local word resume=(--resume auto)
  trireme_words=()
  for word in "$@"; do
    if [[ $word == --resume || $word == --resume=* ]]; then resume=(); fi
    trireme_words+=("${word//'{local}'/$trireme_local}")
  done
  if [[ ${1:-} == train ]]; then trireme_words+=("${resume[@]}"); fi
}

# Sets trireme_command: what each rank executes. Where a site shows every rank all devices of its node, this gives it one.
trireme_rank_command() {
  trireme_command=("$trireme_bin" "$@")
  if ((${#trireme_site_binding[@]} != 3)); then return; fi
  local name=${trireme_site_binding[0]} order=${trireme_site_binding[1]} count=${trireme_site_binding[2]}
  if [[ -n ${!name+set} ]]; then
    trireme_say "site $trireme_site_name: kept $name=${!name}"
    return
  fi
  trireme_say "site $trireme_site_name: one of $count devices for each rank by $name, $order"
  # shellcheck disable=SC2016
  trireme_command=(bash -c '
    for local in "${SLURM_LOCALID:-}" "${PALS_LOCAL_RANKID:-}" "${PMI_LOCAL_RANK:-}" \
      "${OMPI_COMM_WORLD_LOCAL_RANK:-}" "${MPI_LOCALRANKID:-}"; do
      if [[ -n $local ]]; then break; fi
    done
    device=$((${local:-0} % $3))
    if [[ $2 == reverse ]]; then device=$(($3 - 1 - device)); fi
    export "$1=$device"
    shift 3
    exec "$@"' trireme-rank "$name" "$order" "$count" "$trireme_bin" "$@")
}

# ---- running it ----------------------------------------------------------------------------------------------------

trireme_signal=""
trireme_child=""

# Only USR1 is passed on: mpirun takes TERM for a wish to kill, and a second signal would cut a save short.
trireme_on_signal() {
  if [[ -n $trireme_signal ]]; then return; fi
  trireme_signal=$1
  trireme_say "got $1: the ranks are told to save and stop"
  if [[ -n $trireme_child && ($1 != TERM || $trireme_term_reaches_ranks == no) ]]; then
    kill -USR1 "$trireme_child" 2>/dev/null || true
  fi
}
trireme_term_reaches_ranks=no

# trireme_watch COMMAND..: runs it, and sets trireme_code to its exit code and trireme_ran to the seconds that it took.
trireme_watch() {
  local errors start=$SECONDS
  errors=$(mktemp "${TMPDIR:-/tmp}/trireme-job.XXXXXX")
  trap 'trireme_on_signal USR1' USR1
  trap 'trireme_on_signal TERM' TERM
  "$@" 2> >(trap '' USR1 TERM; exec tee "$errors" >&2) &
  trireme_child=$!
  # A trapped signal ends wait early; what counts is the answer after the program has gone.
  wait "$trireme_child" || true
  while kill -0 "$trireme_child" 2>/dev/null; do wait "$trireme_child" || true; done
  trireme_code=0
  wait "$trireme_child" || trireme_code=$?
  trireme_child=""
  trireme_ran=$((SECONDS - start))
  trireme_true_code "$errors"
  rm -f "$errors"
}

# A launcher returns the highest code of its ranks, so that those which it killed hide the one that failed: look for it
# in what srun and mpirun say. Changes trireme_code.
trireme_true_code() { # FILE
  local said
  if ((trireme_code < 128 && trireme_code != 1)); then return; fi
  sleep 0.2 # tee may not have written its last line yet
  said=$(sed -n -E 's/.*(Exited with exit code|Exit code:) *(64|65|69|70|71|74|75|79|85)$/\2/p' "$1" | head -n 1)
  if [[ -n $said ]]; then
    trireme_say "the launcher returned $trireme_code; the rank that ended first returned $said"
    trireme_code=$said
  fi
}

# What an exit code asks for: done, again (saved on request), retry (may pass) or stop.
trireme_verdict() { # CODE
  case $1 in
    0) echo "done" ;;
    85) echo again ;;
    71 | 74 | 75) echo retry ;;
    2 | 64 | 65 | 69 | 70 | 79) echo stop ;;
    # A rank was killed: by a failing node, the memory's guardian, or a person.
    129 | 13[0-9] | 14[0-9]) echo retry ;;
    *) echo stop ;;
  esac
}

# ---- the end -------------------------------------------------------------------------------------------------------

# A job of a chain that has nothing left to do ends as its predecessor did.
trireme_leave_finished_chain() {
  local code where
  if [[ -z ${TRIREME_CHAIN:-} || ! -s $TRIREME_CHAIN ]]; then return; fi
  read -r code where <"$TRIREME_CHAIN"
  trireme_say "the chain ended with code $code in job $where: nothing to do"
  exit "$code"
}
trireme_end_chain() { # CODE
  if [[ -n ${TRIREME_CHAIN:-} ]]; then echo "$1 $trireme_job_id" >"$TRIREME_CHAIN"; fi
}

# Failures in a row are counted in a file, since the scheduler counts every start.
trireme_retries_file() { echo "$PWD/.trireme-retries-${trireme_job_id//[^A-Za-z0-9_]/-}"; }
trireme_may_retry() { # WHY
  local count=0 file
  file=$(trireme_retries_file)
  if [[ -s $file ]]; then read -r count <"$file"; fi
  if ((count >= ${TRIREME_MAX_RETRIES:-3})); then
    trireme_say "$1, $((count + 1)) times in a row: not tried again"
    rm -f "$file"
    return 1
  fi
  echo $((count + 1)) >"$file"
  trireme_say "$1: try $((count + 1)) of ${TRIREME_MAX_RETRIES:-3}"
}

# Ends the script as trireme_code asks for. The adapter's trireme_again starts the job anew or returns.
trireme_finish() {
  local verdict why="code $trireme_code"
  verdict=$(trireme_verdict "$trireme_code")
  trireme_say "code $trireme_code: $verdict"
  # A limit shorter than stop.before_deadline would go round for ever, a step at a time.
  if [[ $verdict == again && $trireme_ran -lt 30 ]]; then
    verdict=retry why="stopped $trireme_ran s after its start"
  fi
  if [[ $verdict != retry ]]; then rm -f "$(trireme_retries_file)"; fi
  case $verdict in
    "done" | stop) trireme_end_chain "$trireme_code" ;;
    *) # In a chain the next job goes on.
      if [[ -z ${TRIREME_CHAIN:-} ]] && { [[ $verdict == again ]] || trireme_may_retry "$why"; }; then trireme_again; fi
      ;;
  esac
  exit "$trireme_code"
}

# ---- sweeps and ladders --------------------------------------------------------------------------------------------

# trireme_sweep_words FILE N: sets trireme_sweep to the words of line N of a file; empty lines and comments do not count.
trireme_sweep_words() {
  local line
  line=$(grep -vE '^[[:space:]]*(#|$)' "$1" | sed -n "${2}p")
  if [[ -z $line ]]; then
    trireme_say "$1 has no line $2: the array must have as many tasks as the file has lines"
    exit 64
  fi
  read -ra trireme_sweep <<<"$line"
  # Runs must not share a folder.
  if [[ $line != *run.name=* ]]; then trireme_sweep+=(--set "run.name=sweep-$2"); fi
  trireme_say "sweep $2: ${trireme_sweep[*]}"
}

# trireme_ladder KIND BATCH WORDS..: trains on 1, 2, 4 ... of the job's ranks and prints a table. strong: BATCH sequences
# for all together; weak: BATCH for each rank.
trireme_ladder() {
  local kind=$1 batch=$2 ranks=1 global out seconds tokens first="" table
  shift 2
  table=$PWD/scaling-$kind-${trireme_job_id//[^A-Za-z0-9_]/-}.csv
  echo "ranks,nodes,global_batch_size,tokens,seconds,tokens_per_s,efficiency" >"$table"
  while true; do
    global=$batch
    if [[ $kind == weak ]]; then global=$((batch * ranks)); fi
    trireme_arguments "$@" --set "train.global_batch_size=$global" --set "run.name=$kind-$trireme_job_id-$ranks"
    trireme_rank_command "${trireme_words[@]}"
    trireme_launch_words "$ranks"
    out=$(mktemp)
    trireme_watch "${trireme_launch[@]}" "${trireme_command[@]}" >"$out"
    cat "$out"
    if ((trireme_code)); then
      rm -f "$out"
      trireme_say "stopped at $ranks ranks; what there is: $table"
      trireme_finish
    fi
    tokens=$(sed -n 's/^done .* tokens=\([0-9]*\) .*/\1/p' "$out")
    seconds=$(sed -n 's/^done .* seconds=\([0-9.]*\) .*/\1/p' "$out")
    rm -f "$out"
    awk -v r="$ranks" -v n="$trireme_launch_nodes" -v g="$global" -v t="$tokens" -v s="$seconds" -v f="$first" 'BEGIN {
      if (s <= 0) s = 0.1
      each = t / s / r
      printf "%d,%d,%d,%d,%.1f,%.0f,%.3f\n", r, n, g, t, s, t / s, f == "" ? 1 : each / f }' >>"$table"
    if [[ -z $first ]]; then first=$(awk -v t="$tokens" -v s="$seconds" 'BEGIN {print t / (s > 0 ? s : 0.1)}'); fi
    if ((ranks == trireme_ranks)); then break; fi
    ranks=$((2 * ranks < trireme_ranks ? 2 * ranks : trireme_ranks))
  done
  trireme_say "$kind scaling, also in $table"
  column -s, -t "$table" 2>/dev/null || cat "$table"
  trireme_finish
}
