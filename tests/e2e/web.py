"""nginx and Apache with PHP behind a card, under load from wrk.

The servers use their own configurations in the work folder, never those of the machine.
"""

import pathlib
import re
import resource
import subprocess
import time

import lab
from check import Wrong

PORT = 8080
# Of nginx, besides the process that starts them.
WORKERS = 2
MODULES = pathlib.Path("/usr/lib/apache2/modules")
# Answers with the requested size, after some work.
SCRIPT = """<?php
header('Content-Type: text/plain');
echo hash('sha256', str_repeat($_GET['word'] ?? '', 100)), "\\n", str_repeat('x', 1000);
"""


def nginx(hosts, wire):
    """nginx: 1000 connections, no error."""
    with hosts.card(wire):
        serve_nginx(hosts)
        return loaded(hosts, "/file")


def serve_nginx(hosts):
    folder = hosts.work / "nginx"
    folder.mkdir(exist_ok=True)
    (folder / "file").write_bytes(b"p" * 1024)
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};"
                        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off; worker_processes {WORKERS}; pid {folder}/pid; worker_rlimit_nofile 8192;\n"
        f"events {{ worker_connections 4096; }}\n"
        f"http {{ access_log off; keepalive_requests 1000000000; {temporary}\n"
        f"server {{ listen {PORT} reuseport; listen [::]:{PORT} reuseport; root {folder}; }} }}\n")
    return hosts.serve("nginx", "-p", str(folder), "-e", "stderr", "-c", str(configuration), port=PORT)


def apache(hosts, wire):
    """Apache with PHP: 1000 connections, each request a new one; no error, and PHP has run."""
    php = sorted(MODULES.glob("libphp*.so"))
    with hosts.card(wire):
        folder = hosts.work / "apache"
        folder.mkdir(exist_ok=True)
        (folder / "index.php").write_text(SCRIPT)
        (folder / "plain.txt").write_text("plain\n")
        lines = [f"ServerRoot {folder}", "ServerName behind", f"Listen {PORT}", f"PidFile {folder}/pid",
                 f"Mutex file:{folder} default", "ErrorLog /dev/stderr", "LogLevel error",
                 f"DocumentRoot {folder}", "User www-data", "Group www-data",
                 f"LoadModule mpm_prefork_module {MODULES}/mod_mpm_prefork.so",
                 f"LoadModule authz_core_module {MODULES}/mod_authz_core.so",
                 f"LoadModule mime_module {MODULES}/mod_mime.so", "TypesConfig /dev/null",
                 "StartServers 16", "MaxRequestWorkers 64", "KeepAlive Off", "ListenBacklog 4096",
                 "EnableSendfile On"]
        if php:
            lines += [f"LoadModule php_module {php[0]}", "AddType application/x-httpd-php .php"]
        configuration = folder / "apache2.conf"
        configuration.write_text("\n".join(lines) + "\n")
        hosts.serve("apache2", "-DFOREGROUND", "-f", str(configuration), port=PORT)
        path = "/index.php?word=through" if php else "/plain.txt"
        told = subprocess.run(["ip", "netns", "exec", hosts.client, "curl", "-s", "-f",
                               f"http://{hosts.SERVER[0]}:{PORT}{path}"],
                              stdout=subprocess.PIPE, text=True, timeout=lab.PATIENCE)
        if php and not re.match("[0-9a-f]{64}\nx{1000}$", told.stdout):
            raise Wrong(f"PHP answers {told.stdout[:200]!r}")
        return loaded(hosts, path) + ("" if php else ", without PHP, which is not installed")


def loaded(hosts, path):
    """wrk with many connections, until half as many requests have been answered; any error is Wrong."""
    requests, times, end = 0, 0, time.monotonic() + lab.PATIENCE
    while requests < hosts.CONNECTIONS // 2 and time.monotonic() < end:
        asking = start_asking(hosts, path, hosts.CONNECTIONS, hosts.SECONDS)
        requests, times = requests + judged(asking.communicate(timeout=lab.PATIENCE)[0]), times + 1
    if requests < hosts.CONNECTIONS // 2:
        raise Wrong(f"only {requests} requests in {times} times {hosts.SECONDS} s")
    return f"{requests:,} requests by {hosts.CONNECTIONS} connections in {times * hosts.SECONDS} s, no error"


def start_asking(hosts, path, connections, seconds):
    """wrk, from the client and of the server."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(4096, connections + 256),
                                                resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return hosts.start(hosts.client, "wrk", "-t", "2", "-c", str(connections), "-d",
                       f"{seconds}s", "--timeout", f"{lab.PATIENCE}s",
                       f"http://{hosts.SERVER[0]}:{PORT}{path}",
                       stdout=subprocess.PIPE, text=True)


def judged(told):
    """The requests that wrk reports; any error is Wrong."""
    errors = [line.strip() for line in told.splitlines()
              if "Socket errors" in line or "Non-2xx" in line]
    found = re.search(r"(\d+) requests in", told)
    if errors or not found:
        raise Wrong("; ".join(errors) or f"wrk tells no figures: {told[-500:]}")
    return int(found.group(1))
