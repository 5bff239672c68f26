//! `picnic traffic send|receive`: TCP and UDP at a rate, with the view of both ends.

use crate::output;
use clap::{Args, Subcommand};
use picnic_lab::traffic::{Fill, HEADER_BYTES, Protocol, Receive, Received, Send, Sent, busy_text};
use picnic_lab::unit::Unit;
use picnic_machine::signals;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  picnic traffic receive 0.0.0.0:5300
  picnic traffic send 10.88.0.1:5300 --connections 4 --duration 5
  picnic traffic receive 0.0.0.0:5300 --udp --core 1 --json
  picnic traffic send 10.88.0.1:5300 --udp --rate 100M --size 1000
  picnic traffic receive 0.0.0.0:5300 --connections 1000 --epoll --buffer 262144

Exit codes: 0 good; 1 failed; 2 usage.")]
pub(crate) struct TrafficArgs {
    #[command(subcommand)]
    way: TrafficCommand,
}

#[derive(Debug, Subcommand)]
enum TrafficCommand {
    /// Send, at a rate or as fast as possible
    Send(SendArgs),
    /// Listen, until all connections have ended
    Receive(ReceiveArgs),
}

#[derive(Debug, Args)]
struct SendArgs {
    /// The receiver
    #[arg(value_name = "HOST:PORT", value_parser = address)]
    to: SocketAddr,
    /// Datagrams instead of TCP
    #[arg(long)]
    udp: bool,
    /// Keep all threads on this core
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
    /// Message bits per second over all connections, such as 100M [default: as fast as possible]
    #[arg(long, value_name = "BITS", value_parser = rate)]
    rate: Option<u64>,
    /// Bytes per message, 1 to 65507, for UDP at least 16
    #[arg(long, value_name = "BYTES", default_value_t = 1448,
          value_parser = clap::value_parser!(u64).range(1..=65_507))]
    size: u64,
    /// Simultaneous connections, 1 to 4096
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    connections: u64,
    /// Bytes of each socket's send buffer [default: the system's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1024..=1 << 30))]
    buffer: Option<u64>,
    /// Seconds
    #[arg(long, default_value = "10", value_parser = seconds)]
    duration: Duration,
}

#[derive(Debug, Args)]
struct ReceiveArgs {
    /// Address to listen on
    #[arg(value_name = "ADDRESS:PORT", value_parser = address)]
    at: SocketAddr,
    /// Datagrams instead of TCP
    #[arg(long)]
    udp: bool,
    /// Keep all threads on this core
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
    /// Bytes per read, 1 to 16777216; for TCP
    #[arg(long, value_name = "BYTES", default_value_t = 65_536,
          value_parser = clap::value_parser!(u64).range(1..=16_777_216))]
    read_size: u64,
    /// Number of connections to wait for, 1 to 4096
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    connections: u64,
    /// One thread for all connections of TCP, with epoll
    #[arg(long, conflicts_with = "udp")]
    epoll: bool,
    /// Bytes of each socket's receive buffer [default: the system's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1024..=1 << 30))]
    buffer: Option<u64>,
    /// Also stop after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Start again when done, until stopped
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(args: &TrafficArgs, json: bool) -> anyhow::Result<()> {
    signals::stop_flag()?;
    match &args.way {
        TrafficCommand::Send(args) => send(args, json),
        TrafficCommand::Receive(args) => receive(args, json),
    }
}

fn protocol(udp: bool) -> Protocol {
    if udp { Protocol::Udp } else { Protocol::Tcp }
}

fn send(args: &SendArgs, json: bool) -> anyhow::Result<()> {
    let bytes = args.size as usize;
    if args.udp && bytes < HEADER_BYTES {
        let message = format!("--size: found {bytes}, allowed with --udp: {HEADER_BYTES} to 65507");
        return Err(crate::failure::Usage(message).into());
    }
    let sent = Send {
        to: args.to,
        protocol: protocol(args.udp),
        core: args.core,
        rate_bps: args.rate,
        bytes,
        connections: args.connections as usize,
        buffer_bytes: args.buffer.map(|bytes| bytes as usize),
        duration: args.duration,
    };
    let sent = sent.run()?;
    output::show(&sent, json, || text_of_sent(&sent))
}

fn receive(args: &ReceiveArgs, json: bool) -> anyhow::Result<()> {
    let receive = Receive {
        at: args.at,
        protocol: protocol(args.udp),
        core: args.core,
        read_bytes: args.read_size as usize,
        connections: args.connections as usize,
        epoll: args.epoll,
        buffer_bytes: args.buffer.map(|bytes| bytes as usize),
        limit: args.duration,
    };
    let listening = receive.listen()?;
    loop {
        let received = listening.run()?;
        output::show(&received, json, || text_of_received(&received))?;
        let (broken, all) = (received.broken_connections, received.connections);
        anyhow::ensure!(broken == 0, "{broken} of {all} connections broke");
        if !args.keep {
            return Ok(());
        }
    }
}

fn text_of_sent(sent: &Sent) -> String {
    let mut text = format!(
        "{} in {}: {} messages of {} by {} connections\n",
        Unit::BitsPerSecond.text(sent.goodput_bps),
        Unit::Seconds.text(sent.duration_s),
        output::count(sent.messages),
        Unit::Bytes.text(sent.message_bytes as f64),
        sent.connections,
    );
    if let Some(error) = &sent.pacing_error {
        let [p50, p99, max] =
            [error.p50_ns, error.p99_ns, error.max_ns].map(|ns| Unit::Nanoseconds.text(ns as f64));
        text += &format!("late by p50 {p50}, p99 {p99}, at most {max}\n");
    }
    if sent.protocol == Protocol::Tcp {
        let count = sent.retransmits.map_or("unavailable".into(), output::count);
        text += &format!("sent again: {count}\n");
    }
    text + &format!("busy: {}\n", busy_text(&sent.cores))
}

fn text_of_received(received: &Received) -> String {
    let mut text = format!(
        "{} in {}: {} by {} connections\n",
        Unit::BitsPerSecond.text(received.goodput_bps),
        Unit::Seconds.text(received.duration_s),
        Unit::Bytes.text(received.bytes as f64),
        received.connections,
    );
    if let (Some(lost), Some(reordered)) = (received.lost, received.reordered) {
        let messages = output::count(received.messages);
        let (lost, reordered) = (output::count(lost), output::count(reordered));
        text += &format!("{messages} datagrams, {lost} lost, {reordered} out of order\n");
    }
    if let Some(Fill { mean_fraction, p99_fraction, max_fraction }) = received.receive_buffer {
        let [mean, p99, max] =
            [mean_fraction, p99_fraction, max_fraction].map(|share| Unit::Fraction.text(share));
        text += &format!("receive buffer: mean {mean} full, p99 {p99}, at most {max}\n");
    }
    text + &format!("busy: {}\n", busy_text(&received.cores))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    const ALLOWED: &str = "allowed: HOST:PORT";
    let mut found = text.to_socket_addrs().map_err(|error| format!("{error}; {ALLOWED}"))?;
    found.next().ok_or_else(|| ALLOWED.into())
}

/// Bits per second: `100M`.
fn rate(text: &str) -> Result<u64, String> {
    const ALLOWED: &str = "allowed: 1000 to 1000G bits per second, such as 100M";
    let (number, factor) = match text.split_at_checked(text.len().saturating_sub(1)) {
        Some((number, "k" | "K")) => (number, 1e3),
        Some((number, "M")) => (number, 1e6),
        Some((number, "G")) => (number, 1e9),
        _ => (text, 1.0),
    };
    let bits = number.parse::<f64>().map_err(|_| ALLOWED)? * factor;
    if (1e3..=1e12).contains(&bits) { Ok(bits as u64) } else { Err(ALLOWED.into()) }
}

fn seconds(text: &str) -> Result<Duration, String> {
    const ALLOWED: &str = "allowed: a number of seconds, 0.01 to 86400";
    let seconds: f64 = text.parse().map_err(|_| ALLOWED)?;
    match (0.01..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(ALLOWED.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_multiples() {
        assert_eq!(rate("100M"), Ok(100_000_000));
        assert_eq!(rate("1.5G"), Ok(1_500_000_000));
        assert_eq!((rate("64k"), rate("5000")), (Ok(64_000), Ok(5000)));
        for text in ["", "M", "5", "fast", "-1M", "10000G", "1MM", "nan"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_have_a_port() {
        assert_eq!(address("127.0.0.1:80"), Ok(SocketAddr::from(([127, 0, 0, 1], 80))));
        assert!(address("127.0.0.1").is_err());
    }
}
