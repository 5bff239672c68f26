//! Both ends over loopback.

use super::*;
use picnic_testing::PATIENCE;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Sends to a receiver in another thread; returns the results of both.
fn exchange(receive: Receive, send: impl FnOnce(SocketAddr) -> Send) -> (Sent, Received) {
    let receive = Receive { limit: Some(PATIENCE), ..receive };
    let listening = receive.listen().unwrap();
    let send = send(listening.address().unwrap());
    let sender = std::thread::spawn(move || send.run().unwrap());
    let received = listening.run().unwrap();
    (sender.join().unwrap(), received)
}

#[test]
fn all_bytes_of_all_connections_arrive() {
    let receive = Receive { connections: 3, ..Receive::at(anywhere()) };
    let (sent, received) = exchange(receive, |to| Send {
        connections: 3,
        bytes: 1000,
        rate_bps: Some(2_400_000),
        duration: Duration::from_millis(300),
        ..Send::to(to)
    });
    assert_eq!((sent.connections, received.connections), (3, 3));
    // 300 messages per second, and never more.
    assert!(sent.messages > 0 && sent.messages <= 93, "{sent:?}");
    assert_eq!(received.bytes, sent.messages * 1000);
    assert_eq!((received.lost, received.reordered), (None, None));
    let error = sent.pacing_error.unwrap();
    assert!(error.p50_ns > 0 && error.p50_ns <= error.max_ns);
    assert_eq!(sent.target_bps, Some(2_400_000));
}

#[test]
fn one_thread_reads_many_connections() {
    let receive = Receive {
        connections: 100,
        epoll: true,
        buffer_bytes: Some(65_536),
        ..Receive::at(anywhere())
    };
    let (sent, received) = exchange(receive, |to| Send {
        connections: 100,
        bytes: 1000,
        buffer_bytes: Some(32_768),
        rate_bps: Some(8_000_000),
        duration: Duration::from_millis(200),
        ..Send::to(to)
    });
    assert_eq!((received.connections, received.broken_connections), (100, 0));
    assert_eq!(received.bytes, sent.bytes);
    assert!(received.messages > 0, "{received:?}");
}

#[test]
fn a_connection_that_breaks_is_counted_and_the_others_go_on() {
    for epoll in [false, true] {
        let limit = Some(PATIENCE);
        let receive = Receive { connections: 2, epoll, limit, ..Receive::at(anywhere()) };
        let listening = receive.listen().unwrap();
        let to = listening.address().unwrap();
        let receiving = std::thread::spawn(move || listening.run().unwrap());
        let mut broken = std::net::TcpStream::connect(to).unwrap();
        broken.write_all(b"half of").unwrap();
        // A reset instead of an end.
        rustix::net::sockopt::set_socket_linger(&broken, Some(Duration::ZERO)).unwrap();
        let send = Send { bytes: 10, duration: Duration::from_millis(50), ..Send::to(to) };
        let sent = send.run().unwrap();
        drop(broken);
        let received = receiving.join().unwrap();
        assert_eq!((received.connections, received.broken_connections), (2, 1), "epoll: {epoll}");
        assert_eq!(received.bytes, sent.bytes + 7);
    }
}

#[test]
fn a_buffer_that_the_kernel_refuses_is_an_error() {
    let receive = Receive { buffer_bytes: Some(1 << 30), ..Receive::at(anywhere()) };
    let error = receive.listen().unwrap_err().to_string();
    assert!(error.contains("net.core.rmem_max=1073741824"), "{error}");
}

#[test]
fn datagrams_are_counted_one_by_one() {
    let receive = Receive { protocol: Protocol::Udp, connections: 2, ..Receive::at(anywhere()) };
    let (sent, received) = exchange(receive, |to| Send {
        protocol: Protocol::Udp,
        connections: 2,
        bytes: 100,
        rate_bps: Some(160_000),
        duration: Duration::from_millis(300),
        ..Send::to(to)
    });
    assert_eq!(received.connections, 2);
    assert_eq!(received.messages + received.lost.unwrap(), sent.messages, "{sent:?} {received:?}");
    assert_eq!((received.reordered, sent.retransmits), (Some(0), None));
    assert!(sent.messages > 0 && sent.messages <= 62, "{sent:?}");
}

#[test]
fn without_a_rate_there_is_no_pacing_error() {
    let core = picnic_machine::topology::cores().first().copied();
    let receive = Receive { core, ..Receive::at(anywhere()) };
    let send = |to| Send { core, duration: Duration::from_millis(100), ..Send::to(to) };
    let (sent, received) = exchange(receive, send);
    assert_eq!((sent.pacing_error, sent.target_bps), (None, None));
    assert_eq!(received.bytes, sent.bytes);
    // A sender that gets no core until its time is up sends nothing.
    assert_eq!(sent.goodput_bps > 0.0, sent.bytes > 0);
    assert_eq!(received.goodput_bps > 0.0, received.duration_s > 0.0);
}

#[test]
fn headers_round_trip() {
    let header = Header { connection: 7, is_end: true, number: 1 << 40 };
    assert_eq!(Header::read(&header.bytes()), Some(header));
    assert_eq!(Header::read(&header.bytes()[..15]), None);
}

#[test]
fn missing_cores_are_errors() {
    let send = Send { core: Some(1023), ..Send::to(anywhere()) };
    let error = send.run().unwrap_err().to_string();
    assert!(error.contains("cannot stay on core 1023"), "{error}");
}
