//! `picnic ctl moderation`: the keys of `[interrupt]` of a running card.
//!
//! Each key is an option; a mode is short for its keys. Other keys stay unchanged.

use crate::control::CardChoice;
use crate::failure::Usage;
use clap::ValueEnum;
use picnic_core::config::{GateMode, InterruptSection, TxComplete};
use picnic_core::ring::moderation::ModerationMode;
use serde_json::{Map, Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// An interrupt for each packet
    None,
    /// After a time or a count
    Static,
    /// After a time that follows the packet rate
    Adaptive,
}

/// Adds the keys that make a mode.
pub(super) fn change(
    keys: &mut Map<String, Value>,
    mode: Option<Mode>,
    choice: &CardChoice,
) -> anyhow::Result<()> {
    let Some(mode) = mode else { return Ok(()) };
    keys.insert("adaptive".into(), (mode == Mode::Adaptive).into());
    keys.entry("per_packet").or_insert(false.into());
    let wrong = match (mode, keys.contains_key("rx_usecs")) {
        (Mode::None, true) => "found with \"none\", allowed only with \"static\" or \"adaptive\"",
        // Without a time, each packet would still interrupt.
        (Mode::Static | Mode::Adaptive, false)
            if choice.connect()?.call("moderation.get", json!({}))?["rx_usecs"] == 0 =>
        {
            "found 0 on the card, which interrupts at each packet; give --rx-usecs"
        }
        (Mode::None, false) => {
            keys.insert("rx_usecs".into(), 0.into());
            return Ok(());
        }
        _ => return Ok(()),
    };
    Err(Usage(format!("rx_usecs: {wrong}")).into())
}

/// The card's answer as text.
pub(super) fn text(result: &Value) -> String {
    match (&result["moderation"], &result["replaced"]) {
        (Value::Null, _) => format!("moderation {}\n", in_words(result)),
        (now, before) => format!("moderation {}, was {}\n", in_words(now), in_words(before)),
    }
}

/// The keys of `[interrupt]` as text.
pub(super) fn in_words(keys: &Value) -> String {
    let Ok(section) = serde_json::from_value::<InterruptSection>(keys.clone()) else {
        return "unknown: the card runs another version".into();
    };
    let mut text = mode_in_words(section.moderation());
    if section.gate == GateMode::None {
        text += ", also while busy";
    }
    for (what, usecs) in [("polling for", section.poll_usecs), ("tx after", section.tx_usecs)] {
        if usecs != 0 {
            text += &format!(", {what} {usecs} µs");
        }
    }
    match section.tx_complete {
        TxComplete::Off => {}
        TxComplete::Interrupt => text += ", at once when there is room to send",
        TxComplete::Moderated => text += ", moderated when there is room to send",
    }
    match (section.wire_usecs, section.wire_frames) {
        (0, _) => {}
        (usecs, 0) => text += &format!(", wires every {usecs} µs"),
        (usecs, frames) => text += &format!(", wires every {usecs} µs or {frames} frames"),
    }
    text
}

/// The moderation mode as text.
pub(crate) fn mode_in_words(mode: ModerationMode) -> String {
    match mode {
        ModerationMode::PerPacket => "one for each packet".into(),
        ModerationMode::None => "at each packet".into(),
        ModerationMode::Static { usecs, frames: 0 } => format!("after {usecs} µs"),
        ModerationMode::Static { usecs, frames } => {
            format!("after {usecs} µs or {frames} packets")
        }
        ModerationMode::Adaptive { max_usecs } => {
            format!("adaptive, after {max_usecs} µs at most")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tx_complete_is_shown() {
        let said = |mode: &str| in_words(&json!({ "tx_complete": mode, "tx_usecs": 0 }));
        let usual = "after 20 µs or 64 packets";
        assert_eq!(said("off"), usual);
        assert_eq!(said("interrupt"), format!("{usual}, at once when there is room to send"));
        assert_eq!(said("moderated"), format!("{usual}, moderated when there is room to send"));
    }

    #[test]
    fn wire_moderation_is_shown() {
        let said = |usecs: u32, frames: u32| {
            in_words(&json!({ "wire_usecs": usecs, "wire_frames": frames, "tx_usecs": 0 }))
        };
        let usual = "after 20 µs or 64 packets";
        assert_eq!(said(0, 0), usual);
        assert_eq!(said(50, 0), format!("{usual}, wires every 50 µs"));
        assert_eq!(said(50, 8), format!("{usual}, wires every 50 µs or 8 frames"));
    }
}
