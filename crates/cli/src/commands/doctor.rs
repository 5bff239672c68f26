//! `picnic doctor`: capabilities of this machine, with reasons and fixes.

use crate::output;
use picnic_machine::doctor::examine;
use serde_json::json;

pub(crate) fn run(json: bool) -> anyhow::Result<()> {
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
