//! Metrics and the live page over HTTP/1.1: one request, one answer, then the connection is closed.
//!
//! `GET` and `HEAD` only: `/metrics` at one address, `/` and `/live.json` at the other. Guarantees:
//! no client blocks the thread; clients are limited in number, time and request size. Pages of
//! other origins cannot read the figures, also if their names resolve to this machine (DNS
//! rebinding).
//!
//! Source: RFC 9110, RFC 9112; W3C, "Fetch Metadata Request Headers".

use crate::metrics::CONTENT_TYPE;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Most connections; further ones wait in the kernel.
const CLIENTS: usize = 8;
/// Time limit for request and answer together.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the longest request.
const LONGEST_REQUEST: usize = 8 << 10;
/// Header fields of a request.
const FIELDS: usize = 64;

/// The live page: one file, which refers to no other.
const PAGE: &str = include_str!("page.html");
/// The page's permissions: run its own script, connect to this address, be in no frame.
const PAGE_FIELDS: &str = "Content-Type: text/html; charset=utf-8\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; \
    style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'\r\n\
    X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n";
/// The page's figures.
const LIVE_FIELDS: &str = "Content-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n";

/// The content of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    /// Figures for Prometheus.
    Metrics,
    /// The live page and its figures.
    Page,
}

/// Serves one site.
#[derive(Debug)]
pub(super) struct Http {
    site: Site,
    listener: TcpListener,
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    /// The answer, and the number of bytes sent.
    output: Vec<u8>,
    sent: usize,
    since: Instant,
    is_over: bool,
}

impl Http {
    /// Listens at an address.
    pub(super) fn bind(address: SocketAddr, site: Site) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Http { site, listener, clients: Vec::new() })
    }

    /// Its content.
    pub(super) fn site(&self) -> Site {
        self.site
    }

    /// The address that it listens at.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Descriptors to wait for, and whether for writing.
    pub(super) fn sources(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let is_open = self.clients.len() < CLIENTS;
        let listener = is_open.then(|| (self.listener.as_fd(), false));
        let clients =
            self.clients.iter().map(|client| (client.stream.as_fd(), !client.output.is_empty()));
        listener.into_iter().chain(clients)
    }

    /// Accepts, reads and writes without waiting; `make` makes the metrics or the live figures.
    pub(super) fn turn(&mut self, now: Instant, mut make: impl FnMut() -> String) {
        while self.clients.len() < CLIENTS
            && let Ok((stream, _)) = self.listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                let (input, output) = (Vec::new(), Vec::new());
                let client = Client { stream, input, output, sent: 0, since: now, is_over: false };
                self.clients.push(client);
            }
        }
        for client in &mut self.clients {
            client.turn(self.site, &mut make);
        }
        self.clients.retain(|client| {
            !client.is_over && now.saturating_duration_since(client.since) < PATIENCE
        });
    }
}

impl Client {
    fn turn(&mut self, site: Site, make: impl FnMut() -> String) {
        if self.output.is_empty() {
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(0) => self.is_over = true,
                Ok(bytes) => {
                    self.input.extend(&part[..bytes]);
                    let own = self.stream.local_addr().map(|address| address.ip()).ok();
                    self.output = answer(&self.input, site, own, make).unwrap_or_default();
                }
                Err(error) => self.is_over = !is_temporary(error.kind()),
            }
        }
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) => {
                    self.is_over |= !is_temporary(error.kind());
                    return;
                }
            }
        }
        if !self.output.is_empty() {
            // The sending side is shut first, so that later input causes no reset.
            let _ = self.stream.shutdown(std::net::Shutdown::Write);
            self.is_over = true;
        }
    }
}

fn is_temporary(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The answer to a request that came to the address `own`; none while it is incomplete.
pub(super) fn answer(
    request: &[u8],
    site: Site,
    own: Option<IpAddr>,
    mut make: impl FnMut() -> String,
) -> Option<Vec<u8>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    match parsed.parse(request) {
        Ok(httparse::Status::Partial) if request.len() <= LONGEST_REQUEST => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(response("431 Request Header Fields Too Large", "", "too long\n", false));
        }
        Err(error) => {
            let text = format!("no HTTP request: {error}\n");
            return Some(response("400 Bad Request", "", &text, false));
        }
        Ok(httparse::Status::Complete(_)) => {}
    }
    if parsed.version == Some(1) && field(&parsed, "host").is_none() {
        return Some(response("400 Bad Request", "", "HTTP/1.1 without a Host field\n", false));
    }
    if let Some(why) = foreign(&parsed, own).filter(|_| site == Site::Page) {
        return Some(response("403 Forbidden", "", &format!("{why}\n"), false));
    }
    let is_head = parsed.method == Some("HEAD");
    let path = parsed.path.unwrap_or("").split('?').next().unwrap_or("");
    Some(match (parsed.method, site, path) {
        (Some("GET" | "HEAD"), Site::Metrics, "/metrics") => {
            let kind = format!("Content-Type: {CONTENT_TYPE}\r\n");
            response("200 OK", &kind, &make(), is_head)
        }
        (Some("GET" | "HEAD"), Site::Page, "/") => response("200 OK", PAGE_FIELDS, PAGE, is_head),
        (Some("GET" | "HEAD"), Site::Page, "/live.json") => {
            response("200 OK", LIVE_FIELDS, &make(), is_head)
        }
        (Some("GET" | "HEAD"), ..) => {
            let allowed = match site {
                Site::Metrics => "allowed: /metrics\n",
                Site::Page => "allowed: /, /live.json\n",
            };
            response("404 Not Found", "", allowed, is_head)
        }
        _ => response(
            "405 Method Not Allowed",
            "Allow: GET, HEAD\r\n",
            "allowed: GET, HEAD\n",
            false,
        ),
    })
}

/// A header field, if its value is text.
fn field<'r>(request: &httparse::Request<'_, 'r>, name: &str) -> Option<&'r str> {
    let mut fields = request.headers.iter();
    let field = fields.find(|field| field.name.eq_ignore_ascii_case(name))?;
    Some(std::str::from_utf8(field.value).unwrap_or("").trim())
}

/// The reason why a request may be from another origin; none if it is from this page or a program.
/// A domain name can be anyone's that resolves to this address, so only the address itself counts.
fn foreign(request: &httparse::Request<'_, '_>, own: Option<IpAddr>) -> Option<String> {
    let host = field(request, "host").unwrap_or("");
    let is_own = match host.parse::<SocketAddr>() {
        Ok(address) => Some(address.ip()) == own,
        Err(_) => match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => Some(address) == own,
            Err(_) => {
                let name = host.split_once(':').map_or(host, |(name, _)| name);
                name == "localhost" && own.is_some_and(|own| own.is_loopback())
            }
        },
    };
    if !is_own {
        return Some(format!("Host: found \"{host}\", allowed: the address, or localhost"));
    }
    let origin = field(request, "origin");
    if let Some(origin) = origin.filter(|&origin| origin.strip_prefix("http://") != Some(host)) {
        return Some(format!("Origin: found \"{origin}\", allowed: http://{host}"));
    }
    // A link on another page may lead here; its scripts may not read the figures.
    let site = field(request, "sec-fetch-site").unwrap_or("none");
    let is_link = field(request, "sec-fetch-mode") == Some("navigate");
    (!is_link && !["none", "same-origin"].contains(&site))
        .then(|| format!("Sec-Fetch-Site: found \"{site}\", allowed: same-origin"))
}

fn response(status: &str, fields: &str, body: &str, is_head: bool) -> Vec<u8> {
    let kind = match fields.contains("Content-Type") {
        true => "",
        false => "Content-Type: text/plain; charset=utf-8\r\n",
    };
    let length = body.len();
    let body = if is_head { "" } else { body };
    let head = format!(
        "HTTP/1.1 {status}\r\n{kind}{fields}Content-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_testing::{wait_for, wait_until};
    use proptest::prelude::*;

    fn status(request: &str) -> Option<String> {
        let answer = answer(request.as_bytes(), Site::Metrics, None, || "figures\n".into())?;
        let text = String::from_utf8(answer).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        if !request.starts_with("HEAD") {
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        }
        Some(head.lines().next().unwrap().to_owned())
    }

    #[test]
    fn page_serves_only_its_own_origin() {
        let own: IpAddr = [127, 0, 0, 1].into();
        let asked = |path: &str, fields: &str| {
            let request = format!("GET {path} HTTP/1.1\r\n{fields}\r\n");
            let answer = answer(request.as_bytes(), Site::Page, Some(own), || "{}".into()).unwrap();
            String::from_utf8(answer).unwrap()
        };
        for (path, fields, status) in [
            ("/", "Host: 127.0.0.1:9465\r\n", "200"),
            ("/", "Host: localhost:9465\r\n", "200"),
            ("/", "Host: 127.0.0.1\r\n", "200"),
            // Through a forwarded port.
            ("/live.json", "Host: localhost:8080\r\nOrigin: http://localhost:8080\r\n", "200"),
            ("/live.json", "Host: localhost:1\r\nSec-Fetch-Site: same-origin\r\n", "200"),
            (
                "/",
                "Host: localhost:1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n",
                "200",
            ),
            ("/", "Host: evil.example:9465\r\n", "403"),
            ("/live.json", "Host: localhost.evil.example\r\n", "403"),
            ("/live.json", "Host: 127.0.0.2:9465\r\n", "403"),
            ("/live.json", "Host: [::1]:9465\r\n", "403"),
            ("/live.json", "Host: \r\n", "403"),
            ("/live.json", "Host: localhost:1\r\nOrigin: http://evil.example\r\n", "403"),
            ("/live.json", "Host: localhost:1\r\nOrigin: https://localhost:1\r\n", "403"),
            ("/live.json", "Host: localhost:1\r\nOrigin: null\r\n", "403"),
            ("/live.json", "Host: localhost:1\r\nSec-Fetch-Site: cross-site\r\n", "403"),
            ("/live.json", "Host: localhost:1\r\nSec-Fetch-Site: same-site\r\n", "403"),
            ("/metrics", "Host: localhost:1\r\n", "404"),
        ] {
            let text = asked(path, fields);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {fields}: {text}");
            assert!(!text.contains("Access-Control"), "{text}");
        }
        let page = asked("/", "Host: localhost:9465\r\n");
        assert!(page.contains("default-src 'none'") && page.contains("frame-ancestors 'none'"));
        // A file that needs nothing else works without a network.
        for outside in ["src=\"http", "href=\"http", "url(http", "@import"] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
    }

    #[test]
    fn requests_get_the_right_status() {
        for (request, wanted) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK"),
            ("GET /metrics?a=b HTTP/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1 200 OK"),
            ("GET /metrics HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK"),
            ("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK"),
            ("GET /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request"),
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 404 Not Found"),
            ("POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
            ("nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        ] {
            assert_eq!(status(request).as_deref(), Some(wanted), "{request:?}");
        }
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(LONGEST_REQUEST));
        assert!(status(&long).unwrap().starts_with("HTTP/1.1 431"));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(FIELDS + 1));
        assert!(status(&many).unwrap().starts_with("HTTP/1.1 431"));
        let head =
            answer(b"HEAD /metrics HTTP/1.0\r\n\r\n", Site::Metrics, None, || "figures\n".into())
                .unwrap();
        assert!(head.ends_with(b"\r\n\r\n"));
    }

    #[test]
    fn request_size_is_limited() {
        let start = "GET / HTTP/1.1\r\nHost: ";
        let of = |bytes: usize| format!("{start}{}", "x".repeat(bytes - start.len()));
        assert_eq!(status(&of(LONGEST_REQUEST)), None);
        let longer = status(&of(LONGEST_REQUEST + 1)).unwrap();
        assert_eq!(longer, "HTTP/1.1 431 Request Header Fields Too Large");
    }

    /// Runs until the other side has the complete answer. For the service it stays `now`, so that a
    /// test that has no core for seconds loses no client.
    fn answered(http: &mut Http, now: Instant, mut stream: &TcpStream) -> String {
        stream.set_nonblocking(true).unwrap();
        let mut text = Vec::new();
        wait_for("the answer", || {
            http.turn(now, || "figures\n".into());
            match stream.read_to_end(&mut text) {
                Ok(_) => Some(()),
                Err(error) if is_temporary(error.kind()) => None,
                Err(error) => panic!("{error}"),
            }
        });
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn requests_may_arrive_in_parts() {
        let mut http = Http::bind(([127, 0, 0, 1], 0).into(), Site::Metrics).unwrap();
        let mut stream = TcpStream::connect(http.address().unwrap()).unwrap();
        let now = Instant::now();
        let (first, rest) = b"GET /metrics HTTP/1.0\r\n\r\n".split_at(1);
        stream.write_all(first).unwrap();
        wait_until("it has the first byte", || {
            http.turn(now, String::new);
            http.clients.iter().any(|client| client.input == first)
        });
        stream.write_all(rest).unwrap();
        assert!(answered(&mut http, now, &stream).ends_with("\r\n\r\nfigures\n"));
    }

    #[test]
    fn http_clients_do_not_block_each_other() {
        let mut http = Http::bind(([127, 0, 0, 1], 0).into(), Site::Metrics).unwrap();
        let (address, now) = (http.address().unwrap(), Instant::now());
        // Without clients it returns.
        http.turn(now, String::new);
        assert_eq!(http.sources().map(|(_, writes)| writes).collect::<Vec<_>>(), [false]);
        let silent: Vec<_> =
            (0..CLIENTS - 1).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut asks = TcpStream::connect(address).unwrap();
        asks.write_all(b"GET /metrics HTTP/1.1\r\nHo").unwrap();
        // All places are taken: further clients wait.
        while http.clients.len() < CLIENTS {
            http.turn(now, String::new);
        }
        assert_eq!(http.sources().count(), CLIENTS);
        let mut waits = TcpStream::connect(address).unwrap();
        waits.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        http.turn(now, String::new);
        assert_eq!(http.clients.len(), CLIENTS);
        asks.write_all(b"st: x\r\n\r\n").unwrap();
        let text = answered(&mut http, now, &asks);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\nfigures\n"));
        assert!(answered(&mut http, now, &waits).ends_with("\r\n\r\nfigures\n"));
        drop(silent);
        wait_until("who went is forgotten", || {
            http.turn(now, String::new);
            http.clients.is_empty()
        });
    }

    #[test]
    fn answers_are_sent_in_parts_until_the_reader_leaves() {
        let mut http = Http::bind(([127, 0, 0, 1], 0).into(), Site::Metrics).unwrap();
        // More than a socket holds.
        let figures = "x".repeat(32 << 20);
        let now = Instant::now();
        let ask = |http: &mut Http| {
            let mut stream = TcpStream::connect(http.address().unwrap()).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
            wait_until("a part has been sent", || {
                http.turn(now, || figures.clone());
                http.clients.iter().any(|client| client.sent != 0)
            });
            assert!(!http.clients[0].is_over, "the rest has to wait");
            stream
        };
        let reads = ask(&mut http);
        assert!(answered(&mut http, now, &reads).ends_with(&figures));
        assert!(http.clients.is_empty());
        drop(ask(&mut http));
        wait_until("who went is forgotten", || {
            http.turn(now, String::new);
            http.clients.is_empty()
        });
    }

    /// A client that resets its connection will send nothing more.
    #[test]
    fn reset_connections_are_closed_at_once() {
        let mut http = Http::bind(([127, 0, 0, 1], 0).into(), Site::Metrics).unwrap();
        let stream = TcpStream::connect(http.address().unwrap()).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        // Its time does not pass.
        let now = Instant::now();
        while http.clients.is_empty() {
            http.turn(now, String::new);
        }
        drop(stream);
        wait_until("it is forgotten", || {
            http.turn(now, String::new);
            http.clients.is_empty()
        });
    }

    #[test]
    fn http_clients_have_a_time_limit() {
        let mut http = Http::bind(([127, 0, 0, 1], 0).into(), Site::Metrics).unwrap();
        let _silent = TcpStream::connect(http.address().unwrap()).unwrap();
        let now = Instant::now();
        while http.clients.is_empty() {
            http.turn(now, String::new);
        }
        http.turn(now + PATIENCE - Duration::from_nanos(1), String::new);
        assert_eq!(http.clients.len(), 1);
        http.turn(now + PATIENCE, String::new);
        assert!(http.clients.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(request in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = answer(&request, Site::Page, None, String::new);
        }
    }
}
