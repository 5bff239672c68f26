"""A sweep as a Slurm array job, one of its tasks killed: the same report as one run.

Starts Debian's munged, slurmctld and slurmd as a separate node: configuration, key, socket and state
are in a temporary folder, ports on the loopback of a network namespace, processes in a process
namespace. So everything ends with this program, even if it is killed. The job is the unchanged
examples/cluster/slurm.sh.

    cluster.py           the whole test, as root
    cluster.py --inside  the part within the namespaces

Exit code 77 means skipped, the reason being the last line printed.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = ROOT / "examples/cluster/slurm.sh"
PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client",
            "munged": "munge", "unshare": "util-linux", "ip": "iproute2"}
TASKS = 3
# The task that is killed once.
KILLED = 2
# In the simulator, in some seconds: only these determine the points.
EXPERIMENT = ["nicos-edf", "--set", "sets=60", "--set", "milliseconds=500", "--set", "tight=0",
              "--set", "matched=0"]
PATIENCE_S = 300
# States of a job that has come to its end.
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
ADDRESS = "10.87.0.1"

# A task's program: its arguments, held at its end the first time that KILLED runs, until it is
# killed.
HELD = """#!/bin/sh
if [ "$SLURM_ARRAY_TASK_ID" != {killed} ] || [ -n "$SLURM_RESTART_COUNT" ]; then
    exec {picnic} "$@"
fi
{picnic} "$@" &
echo "$$ $!" > {folder}/pids.new && mv {folder}/pids.new {folder}/pids
wait
while :; do sleep 1; done
"""

CONFIGURATION = """ClusterName=picnic
SlurmctldHost={host}({address})
SlurmctldPort=6817
SlurmdPort=6818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# Lifetime of credentials, and with it the wait of a task until it runs again. On a busy machine a job
# starts seconds after its credential was made.
AuthInfo=socket={folder}/munge.socket,cred_expire=30
# On a busy machine an answer takes its time. Later ones are taken for lost, and jobs run again.
MessageTimeout=60
# Jobs are asked about long after their ends.
MinJobAge=3600
BatchStartTimeout=60
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
NodeName={host} NodeAddr={address} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=10 State=UP
"""


class Failed(Exception):
    pass


def wait_for(what, is_there, processes=()):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = is_there()
        if found:
            return found
        for process in processes:
            if process.poll() is not None:
                raise Failed(f"{process.args[0]} has ended with {process.returncode}")
        time.sleep(0.1)
    raise Failed(f"waited {PATIENCE_S} s for {what}")


def call(*words, environment=None):
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise Failed(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def picnic():
    found = [ROOT / "target/debug/picnic"]
    found = [path for path in found if path.exists()]
    if os.environ.get("PICNIC"):
        return pathlib.Path(os.environ["PICNIC"]).resolve()
    if not found:
        raise Failed("found no picnic, needed is `cargo build -p picnic-cli`, or PICNIC=PATH")
    return found[0]


def figures(program, folder):
    """The content of a report, without the machine, the time and values that depend on time."""
    found = json.loads(call(program, "lab", "report", folder, "--json"))

    def strip(value):
        if isinstance(value, dict):
            gone = {"machines", "facts", "took_s", "folder", "command", "load"}
            return {key: strip(item) for key, item in value.items() if key not in gone}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return strip(found)


class Node:
    """munged, slurmctld and slurmd."""

    def __init__(self, folder):
        self.folder, self.processes = folder, []
        host = socket.gethostname().split(".")[0]
        text = CONFIGURATION.format(folder=folder, host=host, address=ADDRESS,
                                    cpus=os.cpu_count())
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text("")
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self, *words):
        log = open(self.folder / f"{words[0]}.log", "w", encoding="utf-8")
        self.processes.append(subprocess.Popen(
            [str(word) for word in words], stdout=log, stderr=log, env=self.environment))

    def __enter__(self):
        folder = self.folder
        self.start("munged", "--foreground", "--force", f"--key-file={folder}/munge.key",
                   f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid",
                   f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed")
        wait_for("munged", lambda: (folder / "munge.socket").exists(), self.processes)
        self.start("slurmctld", "-D", "-i", "-f", folder / "slurm.conf")
        self.start("slurmd", "-D", "-f", folder / "slurm.conf")

        def is_idle():
            done = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True,
                                  env=self.environment)
            return done.stdout.strip() == "idle"

        wait_for("the node", is_idle, self.processes)
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def call(self, *words):
        return call(*words, environment=self.environment)

    def logs(self):
        for path in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")):
            lines = path.read_text(errors="replace").splitlines()[-15:]
            yield from (f"{path.name}: {line}" for line in lines)


def job(node, number):
    """State of a job by Slurm, and how often it was run again; none if Slurm does not answer."""
    done = subprocess.run(["scontrol", "show", "job", "--oneliner", number], capture_output=True,
                          text=True, env=node.environment)
    states = [dict(word.split("=", 1) for word in line.split() if "=" in word)
              for line in done.stdout.splitlines()]
    return [(state["JobState"], int(state["Restarts"])) for state in states if "JobState" in state]


def inside(program, folder):
    call("ip", "link", "set", "lo", "up")
    # The C library resolves nothing if there are only loopback addresses.
    call("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
    results = folder / "results"
    results.mkdir()
    held = folder / "held"
    held.write_text(HELD.format(killed=KILLED, picnic=program, folder=folder))
    held.chmod(0o755)
    whole = results / "whole"
    call(program, "lab", "run", *EXPERIMENT, "--out", whole)
    node = Node(folder)
    try:
        with node:
            exercise(node, program, held, results, whole)
    except Failed:
        print("\n".join(node.logs()))
        raise


def exercise(node, program, held, results, whole):
    node.environment["PICNIC"] = str(held)
    out = node.folder / "task-%a.out"
    array = node.call("sbatch", "--parsable", f"--array=1-{TASKS}", f"--output={out}", JOB, results,
                      *EXPERIMENT).strip()
    node.environment["PICNIC"] = str(program)
    merging = node.call(
        "sbatch", "--parsable", f"--dependency=afterok:{array}", f"--output={node.folder}/merge.out",
        "--wrap", f"{program} lab merge {results}/part-* --out {results}/all").strip()
    pids, points = node.folder / "pids", results / f"part-{KILLED}" / "points.jsonl"
    wait_for("a first point", lambda: pids.exists() and points.exists() and points.read_text(),
             node.processes)
    # First the process that holds the task, or Slurm would see a successful end.
    for process in pids.read_text().split():
        try:
            os.kill(int(process), signal.SIGKILL)
        except ProcessLookupError:
            pass

    def done():
        found = job(node, array), job(node, merging)
        are_over = all(jobs and all(state in OVER for state, _ in jobs) for jobs in found)
        return found if are_over else None

    try:
        tasks, (merge, *_) = wait_for("all jobs", done, node.processes)
    except Failed as failure:
        raise Failed(f"{failure}: {job(node, array)}, then {job(node, merging)}") from None
    if sorted(restarts for _, restarts in tasks) != [0] * (TASKS - 1) + [1]:
        raise Failed(f"found tasks with {tasks}, expected is one that was run again")
    if {state for state, _ in tasks} | {merge[0]} != {"COMPLETED"}:
        raise Failed(f"found tasks with {tasks} and {merge}, expected is all completed")
    if figures(program, results / "all") != figures(program, whole):
        raise Failed("the merged shards report something else than one run")
    count = len(points.read_text().splitlines())
    print(f"{TASKS} tasks, one killed and run again, {count} points of it: the report is the same")


def main():
    if os.geteuid() != 0:
        print("it needs root")
        return 77
    absent = sorted({package for name, package in PROGRAMS.items()
                     if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")})
    if absent:
        print(f"Slurm is not there: {', '.join(absent)} cannot be found")
        return 77
    program = picnic()
    with tempfile.TemporaryDirectory(prefix="picnic-cluster-") as folder:
        # munged takes no socket from a folder that is closed to others.
        os.chmod(folder, 0o755)
        words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                 sys.executable, "-B", __file__, "--inside", str(program), folder]
        return subprocess.run(words).returncode


if __name__ == "__main__":
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    try:
        if sys.argv[1:2] == ["--inside"]:
            inside(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
        else:
            sys.exit(main())
    except Failed as failure:
        print(f"failed: {failure}")
        sys.exit(1)
