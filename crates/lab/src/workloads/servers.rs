//! The web servers of workloads, each with its own configuration in the hosts' directory: the
//! machine's is not changed.
//!
//! Source: nginx.org/en/docs, httpd.apache.org/docs/2.4, webfsd(1).

use super::hosts::{Hosts, Role};
use super::kind::{ClientKind, ServerKind, Workload};
use super::tools::Tool;
use super::web::WRK;
use anyhow::Context;
use picnic_machine::testbed::{Moves, Program};
use std::ffi::OsStr;
use std::fmt::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's directory of Apache modules.
const APACHE_MODULES: &str = "/usr/lib/apache2/modules";
/// Parallel connections of webfs, two descriptors each: its `select` has 1024, and it fails with
/// more.
const WEBFS_CONNECTIONS: &str = "500";

impl ServerKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            ServerKind::Nginx => "nginx",
            ServerKind::NginxCopy => "nginx-copy",
            ServerKind::Apache => "apache",
            ServerKind::Webfs => "webfs",
        }
    }

    fn tool(self) -> Tool {
        match self {
            ServerKind::Nginx | ServerKind::NginxCopy => ("nginx", "nginx-light"),
            ServerKind::Apache => ("apache2", "apache2"),
            ServerKind::Webfs => ("webfsd", "webfs"),
        }
    }
}

/// The programs that a workload needs besides the basic ones.
pub fn tools(workload: &Workload) -> Vec<Tool> {
    let mut tools = vec![workload.server.tool()];
    if workload.tls {
        tools.push(("openssl", "openssl"));
    }
    if workload.client == ClientKind::Wrk {
        tools.push(WRK);
    }
    tools
}

/// A running web server with a workload's files.
#[derive(Debug)]
pub struct WebServer {
    program: Program,
}

impl WebServer {
    /// Migrations of its threads between cores so far.
    pub fn moves(&self) -> Moves {
        self.program.moves()
    }

    /// Starts it, with this number of processes if that is fixed.
    ///
    /// # Errors
    /// It cannot be started, or reports an error; PHP is missing, and needed.
    pub fn start(hosts: &Hosts, workload: &Workload, workers: usize) -> anyhow::Result<Self> {
        let folder = hosts.folder().to_owned();
        let documents = folder.join("documents");
        std::fs::create_dir_all(&documents)
            .with_context(|| format!("cannot make {}", documents.display()))?;
        for (place, file) in workload.file.iter().enumerate() {
            let path = documents.join(&workload.path(place)[1..]);
            let bytes = match file.php {
                true => page(file.bytes).into_bytes(),
                false => vec![b'p'; file.bytes as usize],
            };
            std::fs::write(&path, bytes)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let tls = workload.tls.then(|| Tls::of(workload, &folder)).transpose()?;
        let port = port(workload);
        check_free(hosts, port)?;
        let file = folder.join("server.conf");
        let write = |text: String| {
            std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
        };
        let (at, file) = (folder.to_string_lossy(), file.to_string_lossy());
        let documents = documents.to_string_lossy();
        let number = port.to_string();
        let words = match workload.server {
            ServerKind::Nginx | ServerKind::NginxCopy => {
                write(nginx(workload, &at, workers, tls.as_ref()))?;
                vec!["nginx", "-p", &*at, "-e", "stderr", "-c", &*file]
            }
            ServerKind::Apache => {
                write(apache(
                    workload,
                    &at,
                    php(workload, APACHE_MODULES)?.as_deref(),
                    tls.as_ref(),
                ))?;
                vec!["apache2", "-D", "FOREGROUND", "-f", &*file]
            }
            ServerKind::Webfs => {
                let most = WEBFS_CONNECTIONS;
                vec!["webfsd", "-F", "-4", "-p", &*number, "-r", &*documents, "-c", most]
            }
        };
        let mut program = hosts.start(Role::Server, &words)?;
        program.wait_for_port(port)?;
        Ok(WebServer { program })
    }
}

/// The server's certificate and key.
struct Tls {
    certificate: PathBuf,
    key: PathBuf,
}

impl Tls {
    /// The workload's own, or one made in this directory.
    fn of(workload: &Workload, folder: &Path) -> anyhow::Result<Tls> {
        if let Some(own) = &workload.certificate {
            check_valid(own)?;
            // The server has another working directory.
            let own = std::path::absolute(own).context("the certificate's path")?;
            return Ok(Tls { certificate: own.clone(), key: own });
        }
        // The machine's own configuration may be missing.
        let file = folder.join("openssl.conf");
        std::fs::write(&file, "[req]\ndistinguished_name = name\n[name]\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
        let tls = Tls { certificate: folder.join("certificate.pem"), key: folder.join("key.pem") };
        let make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
                    -subj /CN=picnic";
        let paths = [("-config", &file), ("-keyout", &tls.key), ("-out", &tls.certificate)];
        let paths = paths.into_iter().flat_map(|(flag, path)| [OsStr::new(flag), path.as_os_str()]);
        openssl(make.split_whitespace().map(OsStr::new).chain(paths))?;
        Ok(tls)
    }
}

/// Refuses a certificate that has expired, as clients would, or whose key is missing.
fn check_valid(path: &Path) -> anyhow::Result<()> {
    let ask = |what: &[&str]| {
        let words = ["x509", "-noout"].into_iter().chain(what.iter().copied()).map(OsStr::new);
        openssl(words.chain([OsStr::new("-in"), path.as_os_str()]))
    };
    let until =
        ask(&["-enddate"]).with_context(|| format!("{}: no certificate", path.display()))?;
    let until = until.trim().trim_start_matches("notAfter=");
    let file = path.display();
    ask(&["-checkend", "0"])
        .map_err(|_| anyhow::anyhow!("{file}: the certificate has expired on {until}"))?;
    let words = ["pkey", "-noout", "-in"].into_iter().map(OsStr::new);
    openssl(words.chain([path.as_os_str()]))
        .map(drop)
        .map_err(|_| anyhow::anyhow!("{file}: no key after the certificate"))
}

/// Runs openssl; returns its output.
fn openssl<'a>(words: impl Iterator<Item = &'a OsStr>) -> anyhow::Result<String> {
    let done = Command::new("openssl").args(words).output().context("cannot start openssl")?;
    let said = String::from_utf8_lossy(&done.stderr);
    anyhow::ensure!(done.status.success(), "openssl: {}", said.lines().next().unwrap_or("failed"));
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Refuses a port that is in use in the server's namespace: the new server would end, and the other
/// would answer.
fn check_free(hosts: &Hosts, port: u16) -> anyhow::Result<()> {
    let bind = move || Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map(drop));
    let bound = hosts.namespace(Role::Server)?.spawn(bind)?.join();
    bound
        .map_err(|_| anyhow::anyhow!("the thread that watches a port panicked: this is a bug"))??
        .with_context(|| format!("port {port} of the server's namespace is taken"))
}

/// The port that a workload's server listens on.
pub fn port(workload: &Workload) -> u16 {
    if workload.tls { 443 } else { 80 }
}

/// A page from PHP: this many bytes, as rows of a table.
fn page(bytes: u64) -> String {
    format!(
        "<?php $text = ''; for ($row = 0; strlen($text) < {bytes}; $row++) \
         $text .= '<tr><td>'.$row.'</td><td>'.md5($row.mt_rand()).'</td></tr>'; \
         echo substr($text, 0, {bytes});"
    )
}

/// Apache's PHP module, in the directory of its modules.
fn php(workload: &Workload, modules: &str) -> anyhow::Result<Option<PathBuf>> {
    if !workload.file.iter().any(|file| file.php) {
        return Ok(None);
    }
    let found = std::fs::read_dir(modules).into_iter().flatten().flatten();
    let mut found = found.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libphp") && name.ends_with(".so")
    });
    let module = found
        .next()
        .context("PHP for Apache is not installed: try `apt-get install libapache2-mod-php`")?;
    Ok(Some(module))
}

fn nginx(workload: &Workload, folder: &str, workers: usize, tls: Option<&Tls>) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {folder}/{kind};\n"))
        .collect();
    let sendfile = if workload.server == ServerKind::Nginx { "on" } else { "off" };
    // With a single buffer, each is sent before the next is read.
    let buffers = match workload.send_bytes {
        0 => String::new(),
        bytes => format!("  output_buffers 1 {bytes};\n"),
    };
    let tls = tls.map_or(String::new(), |Tls { certificate, key }| {
        let (certificate, key) = (certificate.display(), key.display());
        format!(" ssl; ssl_certificate \"{certificate}\"; ssl_certificate_key \"{key}\"")
    });
    format!(
        "daemon off;\nworker_processes {workers};\npid {folder}/nginx.pid;\n\
         worker_rlimit_nofile 65536;\nerror_log stderr;\n\
         events {{ worker_connections 16384; }}\n\
         http {{\n  access_log off;\n  sendfile {sendfile};\n  tcp_nopush on;\n  \
         open_file_cache max=64;\n{buffers}{temporary}  \
         server {{ listen {}{tls}; root {folder}/documents; }}\n}}\n",
        port(workload)
    )
}

fn apache(workload: &Workload, folder: &str, php: Option<&Path>, tls: Option<&Tls>) -> String {
    let mut text = format!(
        "ServerRoot {folder}\nServerName picnic\nPidFile {folder}/apache.pid\n\
         ErrorLog {folder}/apache.log\nDefaultRuntimeDir {folder}\nUser nobody\nGroup nogroup\n\
         Listen {}\nListenBacklog 4096\n\
         LoadModule mpm_prefork_module {APACHE_MODULES}/mod_mpm_prefork.so\n\
         LoadModule authz_core_module {APACHE_MODULES}/mod_authz_core.so\n\
         StartServers 16\nMinSpareServers 8\nMaxSpareServers 64\nServerLimit 256\n\
         MaxRequestWorkers 256\nEnableSendfile On\nDocumentRoot {folder}/documents\n",
        port(workload)
    );
    // Writing to a string does not fail.
    if let Some(module) = php {
        let _ = write!(
            text,
            "LoadModule php_module {}\n<FilesMatch \\.php$>\nSetHandler application/x-httpd-php\n\
             </FilesMatch>\n",
            module.display()
        );
    }
    if let Some(Tls { certificate, key }) = tls {
        let _ = write!(
            text,
            "LoadModule ssl_module {APACHE_MODULES}/mod_ssl.so\nSSLEngine on\nSSLSessionCache none\n\
             SSLCertificateFile \"{}\"\nSSLCertificateKeyFile \"{}\"\n",
            certificate.display(),
            key.display()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::tools;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;

    #[test]
    fn missing_modules_are_reported_with_their_package() {
        let found = |name: &str, modules| php(&Workload::find(name).unwrap(), modules);
        let error = found("support", "/nowhere").unwrap_err().to_string();
        let wanted = "PHP for Apache is not installed: try `apt-get install libapache2-mod-php`";
        assert_eq!(error, wanted);
        assert!(found("webstone", "/nowhere").unwrap().is_none(), "it needs no PHP");
    }

    /// Expired long ago, on a single day.
    const EXPIRED: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBCTCBsAIBATAKBggqhkjOPQQDAjARMQ8wDQYDVQQDDAZwaWNuaWMwHhcNMjAw\n\
MTAxMDAwMDAwWhcNMjAwMTAyMDAwMDAwWjARMQ8wDQYDVQQDDAZwaWNuaWMwWTAT\n\
BgcqhkjOPQIBBggqhkjOPQMBBwNCAASZY/qjpHoIzGCaGOanplbRzMfCudhZP4d0\n\
HEO5qXOvVuR0NQ1t0zC0HI+b9le+o34tw3X/yQbahmX6rBSJCSthMAoGCCqGSM49\n\
BAMCA0gAMEUCIQCe8MI+zqcv76ybtGd1Dp4L8Hg1Trun17zbjoynwNy+iQIgBz25\n\
1o86hIJq0xB5+Zjy4DdSwiZCDrx6qSif5Auf27Y=\n\
-----END CERTIFICATE-----\n\
";

    #[test]
    fn expired_certificates_are_reported_with_their_date() {
        if tools::installed(&[("openssl", "openssl")]).is_err() {
            return picnic_testing::skip(
                "a certificate that has expired",
                "openssl is not installed",
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("its certificate.pem");
        let name = file.display();
        std::fs::write(&file, EXPIRED).unwrap();
        let told = |file| check_valid(file).unwrap_err().to_string();
        let wanted = "the certificate has expired on Jan  2 00:00:00 2020 GMT";
        assert_eq!(told(&file), format!("{name}: {wanted}"));
        std::fs::write(&file, "nothing").unwrap();
        assert_eq!(told(&file), format!("{name}: no certificate"));
        // One made for the run is valid, and may be given to the next.
        let banking = Workload::find("banking").unwrap();
        let made = Tls::of(&banking, folder.path()).unwrap();
        let own = Workload { certificate: Some(made.certificate.clone()), ..banking };
        let error = Tls::of(&own, folder.path()).err().unwrap().to_string();
        let name = made.certificate.display();
        assert_eq!(error, format!("{name}: no key after the certificate"));
        let both = [&made.certificate, &made.key].map(|file| std::fs::read(file).unwrap());
        std::fs::write(&made.certificate, both.concat()).unwrap();
        assert_eq!(Tls::of(&own, folder.path()).unwrap().key, made.certificate);
    }

    #[test]
    fn ports_in_use_are_reported() {
        if let Err(why) = tools::need(&[]) {
            return picnic_testing::skip("a port that is taken", &why.to_string());
        }
        let hosts = Hosts::build("lab", 1500).unwrap();
        let listen = || Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80))?);
        let namespace = hosts.namespace(Role::Server).unwrap();
        let other = namespace.spawn(listen).unwrap().join().unwrap().unwrap();
        let workload = Workload::find("sclient").unwrap();
        let error = WebServer::start(&hosts, &workload, 1).unwrap_err().to_string();
        assert_eq!(error, "port 80 of the server's namespace is taken");
        drop(other);
        // A process that another test is starting holds it until it executes another program.
        picnic_testing::wait_until("the port is free", || check_free(&hosts, 80).is_ok());
    }

    /// The bytes of each `writev` of these processes during `work`, from strace; none if not
    /// permitted.
    fn sends(processes: &[i32], folder: &Path, work: impl FnOnce()) -> Option<Vec<usize>> {
        let file = folder.join("sends");
        let mut tracer = Command::new("strace")
            .args(["-e", "trace=writev", "-o"])
            .arg(&file)
            .args(processes.iter().flat_map(|process| ["-p".into(), process.to_string()]))
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Open to the end: a writer to a closed pipe is ended by a signal.
        let mut told = BufReader::new(tracer.stderr.take().unwrap());
        let lines = told.by_ref().lines().map_while(Result::ok);
        let attached = lines.take(processes.len()).filter(|line| line.ends_with("attached"));
        let is_attached = attached.count() == processes.len();
        if is_attached {
            work();
        }
        let process = rustix::process::Pid::from_child(&tracer);
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
        std::io::copy(&mut told, &mut std::io::sink()).unwrap();
        tracer.wait().unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        let taken = text.lines().filter_map(|line| line.rsplit_once("= ")?.1.parse().ok());
        is_attached.then(|| taken.collect())
    }

    #[test]
    fn nginx_sends_the_configured_size() {
        let bulk = "workload = \"bulk\"\nserver = \"nginx-copy\"\nsend_bytes = 4096\n\
                    [[file]]\nbytes = 1000000\nweight = 1\n";
        let workload = Workload::parse(bulk).unwrap();
        if let Err(why) = tools::need(&[workload.server.tool(), ("strace", "strace")]) {
            return picnic_testing::skip("what nginx sends at a time", &why.to_string());
        }
        let hosts = Hosts::build("lab", 1500).unwrap();
        let server = WebServer::start(&hosts, &workload, 1).unwrap();
        let processes: Vec<_> =
            server.program.thread_times().into_iter().map(|(process, _)| process).collect();
        let ask = || {
            let mut asked = TcpStream::connect((Ipv4Addr::LOCALHOST, 80))?;
            asked.write_all(b"GET /0.bin HTTP/1.0\r\n\r\n")?;
            let mut answer = Vec::new();
            asked.read_to_end(&mut answer)?;
            Ok(answer.len())
        };
        let folder = tempfile::tempdir().unwrap();
        let mut taken = Vec::new();
        // If the reader is late, there may be no room for a whole piece.
        for _ in 0..20 {
            let mut length = 0;
            let found = sends(&processes, folder.path(), || {
                let asked = hosts.namespace(Role::Server).unwrap().spawn(ask).unwrap();
                length = asked.join().unwrap().unwrap();
            });
            let Some(found) = found else {
                return picnic_testing::skip("what nginx sends at a time", "strace may not look");
            };
            assert_eq!(found.iter().sum::<usize>(), length, "{found:?}");
            // The headers go with the first; the rest is the last.
            let whole = 1_000_000 / 4096;
            if found.len() == whole + 1 && found[1..whole].iter().all(|bytes| *bytes == 4096) {
                return;
            }
            taken = found;
        }
        panic!("{taken:?}");
    }

    #[test]
    fn webfs_survives_more_connections_than_select_takes() {
        if let Err(why) = tools::need(&[ServerKind::Webfs.tool()]) {
            return picnic_testing::skip("webfs with many connections", &why.to_string());
        }
        crate::workloads::web::allow_descriptors(4096).unwrap();
        let hosts = Hosts::build("lab", 1500).unwrap();
        let server = WebServer::start(&hosts, &Workload::find("sclient").unwrap(), 1).unwrap();
        let ask = || {
            let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, 80));
            let idle: Vec<_> = (0..1400).map(|_| connect()).collect::<Result<_, _>>()?;
            // It accepts as many as it can; this is all that can be observed.
            picnic_testing::let_pass(300);
            drop(idle);
            let mut asked = connect()?;
            asked.write_all(b"GET /0.bin HTTP/1.0\r\n\r\n")?;
            let mut answer = Vec::new();
            asked.read_to_end(&mut answer)?;
            Ok(answer)
        };
        let answer = hosts.namespace(Role::Server).unwrap().spawn(ask).unwrap().join().unwrap();
        assert!(answer.unwrap().len() > 20_000);
        drop(server);
    }
}
