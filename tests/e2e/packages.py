#!/usr/bin/env -S python3 -B
"""Installs each package in a clean root and runs the demonstration card there.

    packages.py [KIND...]

    deb     the Debian package: lintian, then apt in a system of Debian's essential packages;
            the card runs as an ordinary user. The default.
    dist    the static program, in a root that has nothing else (builds it: minutes)
    cargo   `cargo install --path crates/cli` (builds it: minutes)

Exit codes: 0 good, 1 failed, 77 skipped for the reason printed.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "scripts/package"
SUITE = "bookworm"
# What apt-get says if a package could not be fetched.
UNREACHED = re.compile(r"^E: (Failed|Unable) to fetch .*|^.*(Temporary failure resolving|Could not connect) .*", re.M)


def main():
    kinds = sys.argv[1:] or ["deb"]
    checks = {"deb": deb, "dist": dist, "cargo": cargo}
    for kind in kinds:
        if kind not in checks:
            print(f"found kind {kind}, allowed: {', '.join(checks)}", file=sys.stderr)
            return 2
    if os.geteuid() != 0:
        return skip("it needs root")
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="picnic-package-") as folder:
            code = checks[kind](pathlib.Path(folder))
        if code:
            return code
        print(f"good: {kind}")
    return 0


def deb(folder):
    absent = [tool for tool in ("debootstrap", "lintian", "dpkg-deb", "unshare")
              if shutil.which(tool) is None]
    if absent:
        return skip(f"{', '.join(absent)} not installed")
    package = made("deb", "--binary", ROOT / "target/debug/picnic")
    checked = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", package],
                             capture_output=True, text=True)
    if checked.returncode:
        return fail(f"lintian: {checked.stdout}{checked.stderr}")

    root = folder / "root"
    booted = subprocess.run(["debootstrap", "--variant=minbase", SUITE, root],
                            capture_output=True, text=True)
    if booted.returncode:
        return skip(f"debootstrap found no Debian packages: {booted.stdout.splitlines()[-1:]}")
    shutil.copy(package, root / "tmp")
    # Services that come with the image's packages are not started; none is installed here.
    recipe = (ROOT / "packaging/Containerfile").read_text()
    programs = re.search(r"picnic_\*\.deb \\\n(.*?)\\\n", recipe, re.S)[1].split()
    done = inside(root, f"""
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -y --no-install-recommends -o Acquire::Retries=5 /tmp/{package.name}
        apt-get install --simulate --no-install-recommends {' '.join(programs)}
        getent group picnic
        test -s /usr/share/man/man1/picnic-run.1.gz
        bash -n /usr/share/bash-completion/completions/picnic
        picnic check /usr/share/doc/picnic/examples/cards/demo.toml
        echo == card; setpriv --reuid=65534 --regid=65534 --clear-groups picnic run; echo == end
        apt-get purge -y picnic
        ! find / -xdev -path /tmp -prune -o -name '*picnic*' -print | grep .
    """)
    if done.returncode and (lost := UNREACHED.search(done.stdout + done.stderr)):
        return skip(f"apt-get did not reach Debian's packages: {lost[0]}")
    return card_ran(done)


def dist(folder):
    archive = made("dist")
    subprocess.run(["tar", "-xzf", archive, "--strip-components=1", "-C", folder], check=True)
    done = subprocess.run(["chroot", "--userspec=65534:65534", folder, "/bin/picnic", "run"],
                          capture_output=True, text=True)
    return card_ran(done)


def cargo(folder):
    installed = subprocess.run(
        ["cargo", "install", "--locked", "--quiet", "--profile", "fast", "--path", "crates/cli",
         "--target-dir", ROOT / "target", "--root", folder], cwd=ROOT)
    if installed.returncode:
        return fail("cargo install failed")
    return card_ran(subprocess.run([folder / "bin/picnic", "run"], cwd=folder,
                                   capture_output=True, text=True))


def made(*arguments):
    done = subprocess.run([PACKAGE, *arguments], capture_output=True, text=True)
    if done.returncode:
        print(f"failed: scripts/package: {done.stderr[-2000:]}" if done.returncode != 77
              else done.stderr.strip())
        sys.exit(done.returncode)
    return ROOT / done.stdout.strip()


def inside(root, script):
    """Runs a script in the root, in separate process, mount and host-name namespaces."""
    outer = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" sh -exc "$1"'
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
                           outer, root, script], capture_output=True, text=True)


def card_ran(done):
    if done.returncode:
        return fail(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    total = re.search(r"^total +([\d,]+) packets .* ([\d,]+) dropped", done.stdout, re.M)
    if not total or total[1] == "0" or total[2] != "0" or ": balanced" not in done.stdout:
        return fail(f"the demonstration card: {done.stdout[-2000:]}")
    return 0


def skip(why):
    print(why)
    return 77


def fail(why):
    print(f"failed: {why}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
