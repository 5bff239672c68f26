//! STORM's order: the time of one member for one message, in a group of five, without a network.
//!
//! Five members pass packets by memory in one thread. The time of all is divided by five members
//! and by the messages that each delivered. Then five cards share one borrowed core, whose time in
//! turns with work is divided in the same way: frames, filters, NIC OS and the protocol.

use super::{measured, time_per_packet};
use picnic_core::time::Time;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome};
use picnic_storm::bench::{Load, until_delivered};
use picnic_storm::{Member, Settings, To, cards};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const MEMBERS: usize = 5;
const PAYLOAD: [u8; 64] = [0x5a; 64];
/// Messages per timing: long enough for the clock.
const MESSAGES: usize = 4096;

/// Loads of five cards on one core: whether all send, and the window.
const CARDS: [(&str, bool, usize); 3] = [
    ("cards_one_sender_one_message_ns", false, 1),
    ("cards_one_sender_window_of_64_ns", false, 64),
    ("cards_all_send_window_of_64_ns", true, 64),
];

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Storm {
    /// Interleaved repeats of each figure
    #[schemars(range(min = 1, max = 100_000))]
    repeats: u32,
}

impl Default for Storm {
    fn default() -> Self {
        Storm { repeats: 51 }
    }
}

impl Benchmark for Storm {
    const NAME: &'static str = "storm";
    const HELP: &'static str = "cost of STORM's order per message and member, five members";
    const QUICK: &'static str = "repeats = 3";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        let cases = [
            ("one_sender_one_message_ns", 1, 1),
            ("one_sender_batch_of_16_ns", 1, 16),
            ("all_send_batch_of_16_ns", MEMBERS, 16),
        ];
        let mut groups: Vec<Group> = cases.iter().map(|_| Group::new()).collect();
        let mut times = vec![Vec::new(); cases.len()];
        // Rounds on cards follow rounds of only the protocol.
        let on_cards_repeats = self.repeats.div_ceil(16);
        let rounds = u64::from(self.repeats + on_cards_repeats);
        for round in 0..self.repeats {
            run.round(round.into(), rounds);
            for ((times, group), (_, senders, batch)) in
                times.iter_mut().zip(&mut groups).zip(cases)
            {
                times.push(time_per_packet(MESSAGES * MEMBERS, || {
                    (0..MESSAGES / (senders * batch)).for_each(|_| group.order(senders, batch));
                }));
            }
        }
        let mut on_cards = vec![Vec::new(); CARDS.len()];
        for round in 0..on_cards_repeats {
            run.round((self.repeats + round).into(), rounds);
            for (times, (_, all_send, window_messages)) in on_cards.iter_mut().zip(CARDS) {
                let load = Load {
                    members: MEMBERS,
                    all_send,
                    payload_bytes: PAYLOAD.len(),
                    window_messages,
                    loss: 0.0,
                    seed: 1,
                    duration: Duration::from_millis(200),
                };
                let found = until_delivered(&load, cards::on_cores)?;
                // With two cores per card, nothing is shared, and there is no such time.
                times.extend(found.borrowed_core_ns_per_message);
            }
        }
        let mut outcome = measured();
        outcome.tell("members", MEMBERS);
        outcome.tell("payload_bytes", PAYLOAD.len());
        for ((key, ..), times) in cases.into_iter().zip(times) {
            outcome.add(Figure::of(key, times));
        }
        for ((key, ..), times) in CARDS.into_iter().zip(on_cards) {
            outcome.add(Figure::of(key, times));
        }
        Ok(outcome)
    }
}

struct Group {
    members: Vec<Member>,
    packet: Vec<u8>,
    now: Time,
}

impl Group {
    fn new() -> Self {
        let members: Vec<String> = (0..MEMBERS).map(|member| member.to_string()).collect();
        let settings = |me| Settings { me, members: members.clone(), ..Settings::default() };
        let member = |me| Member::new(settings(me)).expect("settings of a benchmark");
        let members = (0..MEMBERS as u8).map(member).collect();
        Group { members, packet: vec![0; 1472], now: Time::ZERO }
    }

    /// Each sender submits a batch; all members deliver all of it.
    fn order(&mut self, senders: usize, batch: usize) {
        let Group { members, packet, now } = self;
        *now = *now + 10_000;
        for sender in &mut members[..senders] {
            for _ in 0..batch {
                let _ = sender.submit(&PAYLOAD);
            }
        }
        let expected = members[0].counts().delivered + (senders * batch) as u64;
        while members.iter().any(|member| member.counts().delivered < expected) {
            for from in 0..MEMBERS {
                while let Some((to, length)) = members[from].transmit(*now, packet) {
                    for receiver in (0..MEMBERS).filter(|receiver| *receiver != from) {
                        if to == To::All || to == To::One(receiver as u8) {
                            let _ = members[receiver].receive(*now, &packet[..length]);
                        }
                    }
                }
            }
            members.iter_mut().for_each(|member| while member.deliver().is_some() {});
        }
    }
}
