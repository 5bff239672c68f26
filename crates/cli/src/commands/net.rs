//! `picnic net`: sets up the network of a card's `[net]` section.

mod qemu;

use super::isolate::print_restored;
use crate::failure::Hinted;
use crate::output;
use crate::registries::sections;
use anyhow::Context;
use clap::{Args, Subcommand};
use picnic_control::error::RunError;
use picnic_core::config::CardFile;
use picnic_lab::card::CardArgs;
use picnic_machine::net::{self, Interface, Network};
use picnic_machine::signals;
use picnic_machine::undo::Machine;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qemu-system-x86_64 $(picnic net qemu vm.toml) -drive file=guest.qcow2
  picnic net up my.toml --dry-run        print the commands, run none
  sudo picnic net up my.toml             create the missing parts
  sudo picnic run my.toml                the card between them, in its wires' namespace
  sudo ip netns exec client ping 10.88.0.1
  sudo picnic net down my.toml           remove them; without a file, those of every card

In the card file:
  [net]
  namespaces = [\"client\", \"card\", \"server\"]

  [[net.link]]                           a veth pair; `picnic card` explains every key
  interface = \"w0\"                       in namespace card: the wire's interface
  peer = \"c0\"                            in namespace client
  peer_addresses = [\"10.88.0.2/24\"]

Every change is recorded in /run/picnic ($PICNIC_STATE_DIR) before it is made: `picnic cleanup`
removes the remains of a killed `net up`, `picnic cleanup --all` also complete networks. Needs root and
iproute2, and ethtool for offloads.")]
pub(crate) struct NetArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create missing namespaces and links of a card's [net] section
    Up(UpArgs),
    /// Remove what `net up` created
    Down(DownArgs),
    /// Print the arguments for QEMU of a card's guest (vhost-user)
    Qemu(qemu::QemuArgs),
}

#[derive(Debug, Args)]
struct UpArgs {
    #[command(flatten)]
    card: CardArgs,
    /// Only print the commands
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
struct DownArgs {
    #[command(flatten)]
    card: CardArgs,
}

pub(crate) fn run(args: &NetArgs, json: bool) -> anyhow::Result<()> {
    match &args.action {
        Action::Up(args) => up(args, json),
        Action::Qemu(args) => qemu::run(args, json),
        Action::Down(args) => {
            // Must not stop halfway.
            signals::stop_flag()?;
            let card = match args.card.path() {
                Some(_) => Some(args.card.load(&sections(), Vec::new())?.card.name),
                None => None,
            };
            print_restored(&net::down(&Machine::this(), card.as_deref())?, None, json)
        }
    }
}

fn up(args: &UpArgs, json: bool) -> anyhow::Result<()> {
    let card = args.card.load(&sections(), Vec::new())?;
    let network = Network::of(&card)?;
    if args.dry_run {
        let commands: Vec<_> = network.commands().iter().map(|words| words.join(" ")).collect();
        return output::show(&json!({ "card": network.card, "commands": commands }), json, || {
            commands.join("\n") + "\n"
        });
    }
    let made = net::up(&Machine::this(), &network)?;
    if json {
        return output::print_json(&json!({
            "card": network.card,
            "changed": made.changed,
            "namespaces": network.namespaces,
            "interfaces": made.interfaces,
        }));
    }
    let how = if made.changed { "made" } else { "up already, nothing changed" };
    let file = args.card.path().map_or_else(String::new, |path| format!(" {}", path.display()));
    let namespaces = match network.namespaces.is_empty() {
        true => "none".to_owned(),
        false => network.namespaces.join(", "),
    };
    output::print(&format!(
        "{}: {how}\nnamespaces    {namespaces}\n{}undo          picnic net down{file}\n",
        output::name(&network.card),
        table(&made.interfaces),
    ))
}

fn table(interfaces: &[Interface]) -> String {
    let columns = output::columns("interface|namespace|peer|MAC|#MTU|addresses");
    let rows = interfaces.iter().map(|end| {
        vec![
            end.interface.clone(),
            end.namespace.clone().unwrap_or_else(|| "-".into()),
            end.peer.clone(),
            end.mac.clone(),
            end.mtu.to_string(),
            end.addresses.join(", "),
        ]
    });
    output::fitting_table(&columns, rows)
}

/// Continues in the namespace of the card's wires, by `[net]`: replaces this process with the same
/// command there. Does nothing if already there, or without such a namespace; without root it
/// prints the command.
///
/// # Errors
/// The command cannot be started.
pub(crate) fn enter(card: &CardFile) -> anyhow::Result<()> {
    let Some(namespace) = namespace_of(card) else { return Ok(()) };
    let there = std::fs::metadata(Path::new("/run/netns").join(&namespace));
    let (Ok(there), Ok(here)) = (there, std::fs::metadata("/proc/self/ns/net")) else {
        return Ok(());
    };
    if (there.dev(), there.ino()) == (here.dev(), here.ino()) {
        return Ok(());
    }
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if !rustix::process::geteuid().is_root() {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        output::tell(format_args!(
            "picnic: the card's interfaces are in namespace {namespace}; try: sudo ip netns exec \
             {namespace} picnic {}",
            words.join(" ")
        ));
        return Ok(());
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    output::tell(format_args!("picnic: in namespace {namespace}, as [net] says"));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &namespace]).arg(program).args(words);
    Err(command.exec()).context("cannot start `ip netns exec`")
}

/// The namespace of the card's link ends; none if a wire is elsewhere, names its own namespace, or
/// is not an interface.
fn namespace_of(card: &CardFile) -> Option<String> {
    let links = Network::of(card).ok().filter(|_| card.has("net"))?.links;
    let namespaces = card.wires.iter().map(|wire| {
        let keys: Map<String, Value> = wire.port.parse().ok()?;
        let interface = keys.get("interface")?.as_str()?;
        let link = links.iter().find(|link| link.near.interface == interface)?;
        link.near.namespace.clone().filter(|_| !keys.contains_key("namespace"))
    });
    let namespaces = namespaces.collect::<Option<BTreeSet<_>>>()?;
    let mut namespaces = namespaces.into_iter();
    namespaces.next().filter(|_| namespaces.next().is_none())
}

/// The error of a card that cannot be built; if its interfaces are missing, with the command that
/// creates them.
pub(crate) fn hinted(error: RunError, card: &CardFile) -> anyhow::Error {
    let is_missing =
        card.has("net") && net::is_up(&Machine::this(), &card.card.name).is_ok_and(|is_up| !is_up);
    match card.path().filter(|_| is_missing) {
        Some(path) => {
            let hint = format!("try: picnic net up {}", path.display());
            Hinted { error: error.into(), hint }.into()
        }
        None => error.into(),
    }
}
