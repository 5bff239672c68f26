#!/usr/bin/env -S python3 -B
"""Makes the folder of scripts/many-cores and measures with it for a moment, in a root that has nothing else.

Checks that every item gives figures, that `picnic lab report` and `picnic lab diff` read the results, that
the items that need no network run where mounts are not permitted, and that results are kept if they cannot be
written.

Exit codes: 0 good, 1 failed, 77 skipped for the reason printed.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PICNIC = ROOT / "target/debug/picnic"
LIMIT_S = 600
# The shell and the tools of the other machine.
TOOLS = ["sh", "cat", "cut", "date", "dirname", "grep", "head", "id", "mkdir", "mktemp", "mv", "nproc", "rm", "sed",
         "tail", "tar", "tee", "timeout", "uname"]


def main():
    if os.geteuid() != 0:
        return skip("it needs root")
    made = subprocess.run([ROOT / "scripts/many-cores", "--programs", ROOT / "target/debug"],
                          capture_output=True, text=True)
    if made.returncode:
        return skip(made.stderr.strip()) if made.returncode == 77 else fail(made.stderr)
    folder = ROOT / made.stdout.strip()
    with tempfile.TemporaryDirectory(prefix="picnic-many-cores-") as place:
        place = pathlib.Path(place)
        for name in ("bin", "dev", "many-cores", "out", "proc", "sys", "tmp"):
            (place / name).mkdir()
        shutil.copy(folder / "root/usr/bin/busybox", place / "bin")
        for tool in TOOLS:
            (place / "bin" / tool).symlink_to("busybox")
        code = whole(place, folder) or without_mounts(place, folder) or unwritable(place, folder)
    if code == 0:
        print("good: all items in an empty root; those without a network where nothing may be mounted; "
              "results of a full disk are kept")
    return code


def whole(place, folder):
    done = inside(place, folder, "/many-cores/run --self-test /out")
    if done.returncode or "failed: 0" not in done.stdout or "not measured" in done.stdout:
        return fail(done.stdout + done.stderr)
    results = unpacked(place)
    facts = (results / "log/facts.txt").read_text()
    if "network namespaces and veth: yes" not in facts or "TAP: yes" not in facts:
        return fail(facts[:2000])
    for command in (["report", results / "lab", "--markdown"], ["diff", results / "lab", results / "lab"]):
        read = subprocess.run([PICNIC, "lab", *command], capture_output=True, text=True)
        if read.returncode or "rss-web" not in read.stdout:
            return fail(read.stdout + read.stderr)
    return 0


def without_mounts(place, folder):
    # Not in the empty root: the programs of the tests are not static.
    drop = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    items = "dispatch,picnic-scaling,rss-web"
    done = subprocess.run([*drop, folder / "run", "--self-test", "--only", items, place / "out"],
                          capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode or "rss-web: not measured" not in done.stdout or "picnic-scaling: done" not in done.stdout:
        return fail(done.stdout + done.stderr)
    return 0


def unwritable(place, folder):
    """A folder on a full disk: the results stay where they are, and the last line says where."""
    full = 'mount -t tmpfs -o size=8k tmpfs "$0" && head -c 4096 /dev/zero > "$0/full" && exec "$@"'
    measure = [folder / "run", "--self-test", "--only", "facts,dispatch", place / "out"]
    drop = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    for command in (measure, [*drop, *measure]):
        done = subprocess.run(["unshare", "--mount", "sh", "-c", full, place / "out", *command],
                              env={**os.environ, "OUT": "/nowhere"},
                              capture_output=True, text=True, timeout=LIMIT_S)
        last = done.stdout.rstrip().rpartition("\n")[2]
        kept = pathlib.Path(last.rpartition(" ")[2])
        if done.returncode != 1 or "cannot be written; the results are in" not in last:
            return fail(f"{done.returncode}: {done.stdout}{done.stderr}")
        if not list(kept.glob("micro/dispatch-*.json")) or "dispatch: done" not in (kept / "log.txt").read_text():
            return fail(f"{kept}: no results: {done.stdout}")
        shutil.rmtree(kept)
    return 0


def inside(place, folder, command):
    """Runs a command there, with mounts that end with it."""
    outer = ('mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" && '
             'mount --rbind /dev "$0/dev" && mount --bind "$1" "$0/many-cores" && exec chroot "$0" /bin/sh -c "$2"')
    return subprocess.run(["unshare", "--mount", "sh", "-c", outer, place, folder, command],
                          # A folder that only the caller's root has.
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "OUT": "/nowhere"},
                          capture_output=True, text=True, timeout=LIMIT_S)


def unpacked(place):
    with tarfile.open(place / "out/results.tar.gz") as archive:
        archive.extractall(place / "read", filter="data")
    return place / "read/results"


def skip(why):
    print(why)
    return 77


def fail(why):
    print(f"failed: {why[-4000:]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
