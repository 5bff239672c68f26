//! `picnic doctor`: capabilities of this machine, with reasons and fixes.

use crate::output;
use clap::Args;
use picnic_machine::doctor::examine;
use picnic_machine::topology::{Distance, available};
use serde_json::json;

/// Report the features that this machine supports or lacks, and how to add them.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Draw the machine: packages, caches, cores, and distances
    #[arg(long)]
    topology: bool,
}

pub(crate) fn run(args: &DoctorArgs, json: bool) -> anyhow::Result<()> {
    if args.topology {
        return topology(json);
    }
    let mut findings = examine();
    findings.extend(picnic_kernel::examine());
    if json {
        return output::print_json(&json!({ "findings": findings }));
    }
    let columns = output::columns("what||why");
    let rows = findings.iter().map(|finding| {
        let answer = if finding.available { "yes" } else { "no" };
        vec![finding.name.into(), answer.into(), finding.reason.clone()]
    });
    let mut text = output::fitting_table(&columns, rows);
    let mut missing = findings.iter().filter(|finding| !finding.available).peekable();
    if missing.peek().is_some() {
        text += "\nMissing, and how to fix it:\n";
    }
    for finding in missing {
        let mend = finding.mend.as_deref().unwrap_or("cannot be fixed on this machine");
        text += &output::hanging("  ", &format!("{}, for {}", finding.name, finding.needed_for));
        // A command stays on one line.
        text += &format!("    {mend}\n");
    }
    output::print(&text)
}

/// The machine, and the distance of its cores from the core that a card borrows by default.
fn topology(json: bool) -> anyhow::Result<()> {
    let here = available();
    let topology = &here.topology;
    if json {
        let one = |core: usize| {
            let distance = |other| topology.distance(core, other);
            let all: Vec<Option<Distance>> = topology.online.iter().map(distance).collect();
            json!({ "core": core, "distances": all })
        };
        let all: Vec<_> = topology.online.iter().map(one).collect();
        return output::print_json(&json!({ "topology": topology, "cores": all }));
    }
    let mut text = topology.drawing().join("\n") + "\n";
    if let Some(&borrowed) = here.cores.last() {
        let rows = topology.around(borrowed).into_iter();
        let rows = rows.map(|(distance, cores)| vec![distance.name().into(), cores.to_string()]);
        let rows: Vec<_> = rows.collect();
        if !rows.is_empty() {
            let heading = format!("from core {borrowed}|cores");
            text += "\n";
            text += &output::table(&output::columns(&heading), rows);
        }
    }
    for problem in &topology.problems {
        text += &format!("\nunreadable: {problem}");
    }
    output::print(&text)
}
