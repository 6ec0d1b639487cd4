"""A real Slurm of a few nodes on this one machine, for tests: every node is a set of namespaces with a network device,
a /tmp and a process space of its own, and the daemons of the distribution's packages run in them.

    with Cluster(folder, nodes=2) as slurm:
        slurm.run(["srun", "-N2", "hostname"])      # on the host "login", where slurmctld is
        slurm.kill("n2")                            # as if its power went
        slurm.start("n2")

Nothing outside the folder is changed, no address of the machine is used, and all ends with the block. Needs root, Linux
with namespaces, and the packages that missing() looks for.
"""
import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import stat
import subprocess
import time

SUBNET = "10.88.0"  # exists only between the namespaces
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "sinfo", "ip", "unshare", "nsenter")

# Written for quick reactions: a node is missed after ten seconds, a requeued job may start after eleven.
CONFIGURATION = """
ClusterName=trireme
SlurmctldHost=login({subnet}.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
MailProg=/bin/true
MpiDefault=none
# The nodes share the machine's cores: what CPUs= says counts, and nothing is bound.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
KillWait=10
MinJobAge=3600
SlurmdTimeout=10
MessageTimeout=10
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-{nodes}] NodeAddr={subnet}.[11-{last}] CPUs={cpus} RealMemory={memory} Gres=gpu:4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
"""

# The first process of a host: names it, and on a node waits for its cable and becomes slurmd's parent.
LOGIN = """
hostname login
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
ip link add br0 type bridge
ip addr add {subnet}.1/24 dev br0
ip link set br0 up
exec sleep infinity
"""
NODE = """
hostname {name}
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
mkdir -p {folder}/run/{name}.tmp
mount -t tmpfs -o mode=1777 tmpfs {folder}/run/{name}.tmp
for path in {visible}; do
  mkdir -p {folder}/run/{name}.tmp/${{path#/tmp/}}
  mount --rbind $path {folder}/run/{name}.tmp/${{path#/tmp/}}
done
mount --move {folder}/run/{name}.tmp /tmp
until ip link set eth0 up 2>/dev/null; do sleep 0.05; done
ip addr add {address}/24 dev eth0
slurmd -D -N {name} -f {folder}/slurm.conf &
while kill -0 $! 2>/dev/null; do wait $! || true; done
"""


def missing():
    """Why no cluster can be started here, or an empty text."""
    if os.getuid() != 0:
        return "a Slurm of namespaces needs root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    lacking = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if lacking:
        return f"not installed: {', '.join(lacking)} (munge slurmctld slurmd slurm-client iproute2)"
    probe = ["unshare", "--net", "--uts", "--ipc", "--pid", "--fork", "--mount", "ip", "link", "add", "type", "veth"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        return "namespaces with network devices cannot be made here"
    return ""


class Cluster:
    def __init__(self, folder, nodes=2, cpus=64, visible=()):
        self.folder = pathlib.Path(folder).resolve()
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.cpus = cpus
        # Below /tmp only what is named stays visible on the nodes, whose /tmp is their own.
        paths = {self.folder, *map(pathlib.Path, visible)}
        self.visible = sorted(str(path) for path in paths if str(path).startswith("/tmp/"))
        self.processes = {}
        self.environment = {**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf",
                            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        # The test driver's settings for MPI are those of one machine: no network between nodes.
        for name in [name for name in self.environment if name.startswith(("SLURM_", "PMI", "OMPI_"))]:
            if name != "SLURM_CONF":
                del self.environment[name]

    def __enter__(self):
        try:
            self._configure()
            self._spawn("login", ["unshare", "--net", "--uts", "--mount", "--propagation", "slave", "bash", "-euc",
                                  LOGIN.format(folder=self.folder, subnet=SUBNET)])
            self._until(lambda: self._has_own_network("login"), "the host login")
            self._until(lambda: self.run(["ip", "addr", "show", "br0"], code=None).returncode == 0, "the bridge")
            self._spawn("munged", self._on_login(
                ["munged", "--foreground", "--num-threads=2", f"--key-file={self.folder}/munge.key",
                 f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/run/munged.pid",
                 f"--seed-file={self.folder}/munge.seed", f"--log-file={self.folder}/log/munged.log"]))
            self._until(lambda: (self.folder / "munge.socket").exists(), "munged")
            self._spawn("slurmctld", self._on_login(["slurmctld", "-D", "-f", f"{self.folder}/slurm.conf"]))
            for name in self.names:
                self.start(name, wait=False)
            self._until(lambda: self.idle() == len(self.names), "all nodes", patience=60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if "slurmctld" in self.processes:
            with contextlib.suppress(subprocess.SubprocessError):
                self.run(["scancel", "--user=root"], code=None, patience=10)
        for name in [*self.names, "slurmctld", "munged", "login"]:
            self.kill(name)

    def _configure(self):
        for name in ("run", "log", "state", "spool", "work"):
            (self.folder / name).mkdir(parents=True)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 // len(self.names)
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            folder=self.folder, subnet=SUBNET, nodes=len(self.names), last=10 + len(self.names), cpus=self.cpus,
            memory=memory))
        for number in range(4):  # stand-ins for GPUs: Slurm deals out their numbers
            os.mknod(self.folder / f"gpu{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-3]\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # so that none is looked for
        hosts = [f"127.0.0.1 localhost\n{SUBNET}.1 login\n"]
        hosts += [f"{SUBNET}.{11 + number} {name}\n" for number, name in enumerate(self.names)]
        (self.folder / "hosts").write_text("".join(hosts))
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        self.folder.chmod(0o755)

    def _spawn(self, name, command):
        log = open(self.folder / "log" / f"{name}.out", "ab")
        with log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                    env=self.environment, start_new_session=True)

    def _until(self, condition, what, patience=20):
        end = time.monotonic() + patience
        while not condition():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    text = (self.folder / "log" / f"{name}.out").read_text(errors="replace")
                    raise RuntimeError(f"{name} ended while waiting for {what}: {text[-2000:]}")
            if time.monotonic() > end:
                raise RuntimeError(f"{what}: not there after {patience} s; logs in {self.folder}/log")
            time.sleep(0.05)

    def _has_own_network(self, name):
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{self.processes[name].pid}/ns/net") != os.readlink("/proc/self/ns/net")
        return False

    def _on_login(self, command, folder=None):
        return ["nsenter", "-t", str(self.processes["login"].pid), "-n", "-u", "-m", f"--wdns={folder or self.folder}",
                *map(str, command)]

    def start(self, name, wait=True):
        """Switches a node on."""
        # What a boot clears: a step with the same number could not make its socket again.
        for stale in (self.folder / "spool" / name).glob("*pmix*"):
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
        address = f"{SUBNET}.{11 + self.names.index(name)}"
        script = NODE.format(name=name, folder=self.folder, address=address, visible=" ".join(self.visible))
        self._spawn(name, ["unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child",
                           "--mount-proc", "--propagation", "slave", "bash", "-euc", script])
        self._until(lambda: self._has_own_network(name), name)
        device = f"to-{name}"
        plug = ["ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns",
                str(self.processes[name].pid)]
        # The cable of a node that was killed goes away after a moment.
        self._until(lambda: self.run(plug, code=None).returncode == 0, f"the cable of {name}")
        self.run(["ip", "link", "set", device, "master", "br0", "up"])
        if wait:
            self._until(lambda: self.idle(name) == 1, name, patience=60)

    def kill(self, name):
        """Ends a host with all that runs on it, as if its power went."""
        process = self.processes.pop(name, None)
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM if name in ("munged", "slurmctld") else signal.SIGKILL)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def run(self, command, code=0, patience=60, folder=None, environment=None):
        """Runs a command on the host login; `code` None allows any exit code."""
        done = subprocess.run(self._on_login(command, folder), env={**self.environment, **(environment or {})},
                              capture_output=True, text=True, timeout=patience, check=False, stdin=subprocess.DEVNULL)
        if code is not None and done.returncode != code:
            raise RuntimeError(f"{' '.join(map(str, command))}: code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def on(self, name, command, patience=60):
        """Runs a command on a node."""
        process = self.processes[name].pid
        return subprocess.run(["nsenter", "-t", str(process), "-n", "-u", "-m", "-i",
                               f"--pid=/proc/{process}/ns/pid_for_children", *map(str, command)],
                              env=self.environment, capture_output=True, text=True, timeout=patience, check=False)

    def idle(self, name=None):
        """How many nodes take jobs."""
        done = self.run(["sinfo", "-h", "-N", "-p", "main", "-t", "idle,mix,alloc", "-o", "%N %t"], code=None)
        nodes = [line.split() for line in done.stdout.splitlines()]
        return sum(1 for node, state in nodes if not state.endswith("*") and name in (None, node))

    def job(self, number):
        """What scontrol says of a job, as a dictionary; empty when it is forgotten."""
        done = self.run(["scontrol", "-o", "show", "job", str(number)], code=None)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
