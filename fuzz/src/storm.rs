//! STORM's packets from any bytes: taken whole or refused, and never a panic after.

use picnic_core::time::Time;
use picnic_storm::{Member, Settings, wire};

fn member(me: u8) -> Member {
    let members = ["a", "b", "c"].map(String::from).into();
    let settings = Settings { me, members, window_bytes: 4096, ..Settings::default() };
    Member::new(Settings { payload_bytes: 64, packet_bytes: 200, ..settings }).expect("allowed")
}

/// Packets of a length byte and their bytes, one after another, reach a member that sends, too.
/// Everything that it sends parses.
pub fn run(mut data: &[u8]) {
    let mut member = member(1);
    let mut buffer = [0; 200];
    let mut now = Time::ZERO;
    while let Some((&length, rest)) = data.split_first() {
        let (packet, rest) = rest.split_at(rest.len().min(length.into()));
        data = rest;
        let _ = member.submit(&[length; 20]);
        let _ = member.receive(now, packet);
        while member.deliver().is_some() {}
        for _ in 0..40 {
            let Some((_, length)) = member.transmit(now, &mut buffer) else { break };
            let settings = member.settings();
            let sent = wire::parse(&buffer[..length], settings.group, settings.digest(), 3);
            assert!(sent.is_ok(), "a member sent a packet that does not parse: {sent:?}");
        }
        now = now + 1_000_000;
    }
}

/// Where fuzzing starts from.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut buffer = [0; 200];
    let mut seed = Vec::new();
    let mut seeds = vec![Vec::new()];
    for me in [0, 2] {
        let mut sender = member(me);
        for round in 0..4 {
            sender.submit(&[me; 30]).expect("room");
            if let Some((_, length)) = sender.transmit(Time::ZERO, &mut buffer)
                && round != 1
            {
                seed.push(length as u8);
                seed.extend(&buffer[..length]);
            }
        }
        seeds.push(seed.clone());
    }
    seeds
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_pass() {
        super::seeds().iter().for_each(|seed| super::run(seed));
    }
}
