//! `picnic net qemu`: the arguments by which QEMU gives a guest its card.
//!
//! Guarantees: the arguments fit the card file: as many queues, the same socket and MTU. They hold no
//! spaces but those between them, so a shell splits `$(picnic net qemu vm.toml)` correctly.
//!
//! Source: QEMU's manual, -netdev vhost-user; decision 079.

use crate::output;
use crate::registries::sections;
use clap::Args;
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_lab::card::CardArgs;
use picnic_ports::vhost_user::{GuestConfig, Mode, VhostUserConfig};
use serde_json::{Map, Value, json};

/// The attachment that has guests.
const ATTACHMENT: &str = "vhost-user";

#[derive(Debug, Args)]
pub(super) struct QemuArgs {
    #[command(flatten)]
    card: CardArgs,
    /// Number of the guest in the card file, from 0
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    guest: usize,
    /// The guest's memory, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: u32,
    /// Emulate the processors in software, without KVM
    #[arg(long)]
    emulated: bool,
}

pub(super) fn run(args: &QemuArgs, json: bool) -> anyhow::Result<()> {
    let card = args.card.load(&sections(), Vec::new())?;
    let guests = guests(&card)?;
    let count = guests.len();
    let Some(guest) = guests.get(args.guest) else {
        let message = format!("found {}, allowed: 0 to {}", args.guest, count.saturating_sub(1));
        return Err(ConfigError::new("--guest", message).into());
    };
    let queues = card.host.keys.queues / count as u16;
    let words = arguments(args, &card, guest, queues)?;
    output::show(&json!({ "card": card.card.name, "arguments": words }), json, || {
        words.join(" ") + "\n"
    })
}

/// The guests of a card, at least one; its queues can be divided among them.
fn guests(card: &CardFile) -> Result<Vec<GuestConfig>, ConfigError> {
    let section = &card.host.section;
    if section.name() != ATTACHMENT {
        let message = format!("found {:?}, allowed: {ATTACHMENT:?}", section.name());
        return Err(section.locate(ConfigError::new("attachment", message)));
    }
    let guests = section.parse::<VhostUserConfig>()?.guest;
    let queues = usize::from(card.host.keys.queues);
    if guests.is_empty() || !queues.is_multiple_of(guests.len()) {
        let count = guests.len();
        let message =
            format!("found {queues} for {count} guests, allowed: a multiple of the guests");
        return Err(section.locate(ConfigError::new("queues", message)));
    }
    Ok(guests)
}

fn arguments(
    args: &QemuArgs,
    card: &CardFile,
    guest: &GuestConfig,
    queues: u16,
) -> Result<Vec<String>, ConfigError> {
    let path = card.directory.join(&guest.socket);
    let path = std::path::absolute(&path).unwrap_or(path);
    let Some(path) = path.to_str().filter(|path| !path.contains(char::is_whitespace)) else {
        let key = format!("guest[{}].socket", args.guest);
        let message = format!("found {path:?}, allowed here: a path without spaces");
        return Err(card.host.section.locate(ConfigError::new(key, message)));
    };
    // QEMU divides options by commas.
    let path = path.replace(',', ",,");
    let server = if guest.mode == Mode::Client { ",server=on" } else { "" };
    // Without KVM, QEMU 7.2 crashes with interrupts of their own for rings.
    let vectors = if args.emulated { 0 } else { 2 * queues + 2 };
    let (memory, first) = (args.memory, usize::from(queues) * args.guest);
    let mac = pool_mac(card, first).unwrap_or_else(|| own_mac(&card.card.name, args.guest));
    let packed = if guest.packed { ",packed=on" } else { "" };
    let mtu = match guest.mtu {
        1500 => String::new(),
        mtu => format!(",host_mtu={mtu}"),
    };
    let words = [
        "-accel",
        if args.emulated { "tcg" } else { "kvm" },
        "-m",
        &format!("{memory}M"),
        "-object",
        &format!("memory-backend-memfd,id=memory,size={memory}M,share=on"),
        "-machine",
        "memory-backend=memory",
        "-chardev",
        &format!("socket,id=card,path={path}{server}"),
        "-netdev",
        &format!("vhost-user,id=net,chardev=card,queues={queues}"),
        "-device",
        &format!("virtio-net-pci,netdev=net,mac={mac},mq=on,vectors={vectors}{packed}{mtu}"),
    ];
    Ok(words.map(str::to_owned).to_vec())
}

/// The address that `vmdq` gives the guest with this queue.
fn pool_mac(card: &CardFile, queue: usize) -> Option<String> {
    let vmdq = card.rx.iter().find(|section| section.name() == "vmdq")?;
    let keys: Map<String, Value> = vmdq.parse().ok()?;
    let has = |pool: &&Value| {
        let queues = pool.get("queues").and_then(Value::as_array);
        queues.is_some_and(|queues| queues.iter().any(|own| *own == queue))
    };
    let pool = keys.get("pools")?.as_array()?.iter().find(has)?;
    Some(pool.get("macs")?.get(0)?.as_str()?.to_owned())
}

/// A locally administered address that differs between guests of a card, and between most cards.
fn own_mac(card: &str, guest: usize) -> String {
    // FNV-1a: addresses stay the same over restarts.
    let hash = card
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [_, a, b, c] = hash.to_be_bytes();
    format!("02:{a:02x}:{b:02x}:{c:02x}:{:02x}:{:02x}", guest >> 8 & 0xff, guest & 0xff)
}
