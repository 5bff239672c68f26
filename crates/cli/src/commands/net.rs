//! `picnic net`: the network of a card's `[net]` section.

use super::isolate::print_restored;
use crate::output::{self, Column};
use crate::registries::sections;
use clap::{Args, Subcommand};
use picnic_core::config::CardFile;
use picnic_lab::card::CardArgs;
use picnic_machine::net::{self, Interface, Network};
use picnic_machine::signals;
use picnic_machine::undo::Machine;
use serde_json::json;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic net up my.toml --dry-run        print the commands, run none
  sudo picnic net up my.toml             create what is not there yet
  sudo picnic run my.toml                the card between them
  sudo ip netns exec client ping 10.88.0.1
  sudo picnic net down my.toml           remove them; without a file, those of all cards

In the card file:
  [net]
  namespaces = [\"client\", \"card\", \"server\"]

  [[net.link]]                           a veth pair; `picnic card` explains every key
  interface = \"w0\"                       in namespace card: the wire's interface
  peer = \"c0\"                            in namespace client
  peer_addresses = [\"10.88.0.2/24\"]

Every change is recorded in /run/picnic ($PICNIC_STATE_DIR) before it is made: `picnic cleanup`
removes what a killed `net up` leaves, `picnic cleanup --all` also what is up. Needs root and
iproute2, and ethtool for offloads.")]
pub(crate) struct NetArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create the namespaces and links of a card's [net] section that are not there yet
    Up(UpArgs),
    /// Remove what `net up` has made
    Down(DownArgs),
}

#[derive(Debug, Args)]
struct UpArgs {
    #[command(flatten)]
    card: CardArgs,
    /// Print the commands and run none
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
        Action::Down(args) => {
            // Not left half done.
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
        return match json {
            true => output::print_json(&json!({ "card": network.card, "commands": commands })),
            false => output::print(&(commands.join("\n") + "\n")),
        };
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
    let columns = [
        Column::Text("interface"),
        Column::Text("namespace"),
        Column::Text("peer"),
        Column::Text("MAC"),
        Column::Number("MTU"),
        Column::Text("addresses"),
    ];
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

/// Says what makes a card's interfaces, if the card cannot be built and they are not made.
pub(crate) fn hint(card: &CardFile) {
    let is_missing =
        card.has("net") && net::is_up(&Machine::this(), &card.card.name).is_ok_and(|is_up| !is_up);
    if let Some(path) = card.path().filter(|_| is_missing) {
        let path = path.display();
        output::tell(format_args!(
            "picnic: the network of this card is made by: picnic net up {path}"
        ));
    }
}
