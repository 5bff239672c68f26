//! `picnic isolate`: reserves the borrowed core.

use crate::failure::Usage;
use crate::output;
use crate::registries::sections;
use clap::{Args, Subcommand};
use picnic_lab::card::CardArgs;
use picnic_machine::isolate::{self, Isolated, IsolationRequest, Method, Plan};
use picnic_machine::signals;
use picnic_machine::topology::{Available, Topology, available, place};
use picnic_machine::undo::{Machine, Restored};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Names shown per group of threads.
const NAMES: usize = 6;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic isolate plan my.toml                        what would change, and why
  picnic isolate plan --set isolation.level=llc --json
  sudo picnic isolate apply my.toml                  isolate; runs of the card then use it
  sudo picnic isolate restore                        undo everything
  sudo picnic run my.toml --isolate                  for one run

Every change is recorded in /run/picnic ($PICNIC_STATE_DIR) before it is made. The next command or
`picnic cleanup` undoes the changes of a killed command.")]
pub(crate) struct IsolateArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what would move where, and which cores are left out of the target cores
    Plan(PlanArgs),
    /// Move interrupts and processes off the borrowed core, until `restore`
    Apply(ApplyArgs),
    /// Undo what `apply` has changed
    Restore,
}

#[derive(Debug, Args)]
struct PlanArgs {
    #[command(flatten)]
    card: CardArgs,
    /// Read another machine's topology and interrupts from this folder instead of /sys
    #[arg(long, value_name = "FOLDER")]
    sysfs: Option<PathBuf>,
    /// Read another machine's interrupts and processes from this folder instead of /proc
    #[arg(long, value_name = "FOLDER")]
    procfs: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ApplyArgs {
    #[command(flatten)]
    card: CardArgs,
}

/// Output of `apply --json`.
#[derive(Serialize)]
struct AppliedReport<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    threads_moved: usize,
    refused: &'a [String],
    cleaned: &'a [Restored],
}

pub(crate) fn run(args: &IsolateArgs, json: bool) -> anyhow::Result<()> {
    match &args.action {
        Action::Plan(args) => {
            let plan = plan(args)?;
            output::show(&plan, json, || plan_text(&plan))
        }
        Action::Apply(args) => apply(args, json),
        Action::Restore => {
            // Must not stop halfway.
            signals::stop_flag()?;
            let restored = isolate::restore(&Machine::this())?;
            print_restored(&restored, None, json)
        }
    }
}

fn plan(args: &PlanArgs) -> anyhow::Result<Plan> {
    let card = args.card.load(&sections(), Vec::new())?;
    let mut machine = Machine::this();
    let here = match (&args.sysfs, &args.procfs) {
        (None, None) => available(),
        (sysfs, procfs) => {
            machine.sysfs = sysfs.clone().unwrap_or(machine.sysfs);
            machine.procfs = procfs.clone().unwrap_or(machine.procfs);
            // Another machine's journals are not here.
            machine.state = PathBuf::from("/nonexistent");
            let topology = Topology::read(&machine.sysfs);
            if topology.online.is_empty() {
                let folder = machine.sysfs.join("devices/system/cpu");
                return Err(Usage(format!("{}: found no cores", folder.display())).into());
            }
            let cores = topology.online.iter().collect();
            Available { cores, topology, isolated: None }
        }
    };
    let placement = place(&card, &here)?;
    Ok(isolate::plan(&machine, &IsolationRequest::of(&card, &placement))?)
}

fn apply(args: &ApplyArgs, json: bool) -> anyhow::Result<()> {
    let card = args.card.load(&sections(), Vec::new())?;
    let placement = place(&card, &available())?;
    let request = IsolationRequest::of(&card, &placement);
    let stop = signals::stop_flag()?;
    let was_applied = isolate::applied(&Machine::this()).is_some();
    let isolated = isolate::apply(&Machine::this(), &request, true)?;
    if stop.load(Ordering::Acquire) && !was_applied {
        isolate::restore(&Machine::this())?;
        anyhow::bail!("interrupted; all changes are undone");
    }
    let Isolated { plan, threads_moved, refused, cleaned, .. } = &isolated;
    let threads_moved = *threads_moved;
    if json {
        return output::print_json(&AppliedReport { plan, threads_moved, refused, cleaned });
    }
    let mut text = cores_text(plan);
    for journal in cleaned {
        line(&mut text, "cleaned", &journal.to_string());
    }
    let interrupts = plan.interrupts.len();
    line(
        &mut text,
        "moved",
        &format!(
            "{interrupts} interrupts, {threads_moved} threads, {} settings; {} of them refused",
            plan.settings.len(),
            refused.len()
        ),
    );
    for what in refused {
        line(&mut text, "refused", what);
    }
    for warning in &plan.warnings {
        line(&mut text, "note", warning);
    }
    line(&mut text, "undo", "picnic isolate restore");
    output::print(&text)
}

/// The result of undoing.
///
/// # Errors
/// Some changes can be tried again.
pub(crate) fn print_restored(
    restored: &[Restored],
    sockets: Option<&[PathBuf]>,
    json: bool,
) -> anyhow::Result<()> {
    if json {
        let mut result = json!({ "journals": restored });
        if let Some(sockets) = sockets {
            result["sockets"] = json!(sockets);
        }
        output::print_json(&result)?;
    } else {
        let mut text = String::new();
        for journal in restored {
            let _ = writeln!(text, "{journal}");
            for what in journal.refused.iter().chain(&journal.failed) {
                let _ = writeln!(text, "  {what}");
            }
        }
        for socket in sockets.unwrap_or_default() {
            let _ = writeln!(text, "{}: removed, its card has ended", socket.display());
        }
        if text.is_empty() {
            text = "nothing to undo\n".into();
        }
        output::print(&text)?;
    }
    let failed: usize = restored.iter().map(|journal| journal.failed.len()).sum();
    anyhow::ensure!(failed == 0, "{failed} changes could not be undone; run it again");
    Ok(())
}

fn line(text: &mut String, name: &str, value: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{name:<13} {value}");
}

fn cores_text(plan: &Plan) -> String {
    let mut text = String::new();
    line(&mut text, "borrowed core", &plan.borrowed_core.to_string());
    line(&mut text, "target cores", &plan.target_cores.to_string());
    for left_out in &plan.left_out {
        let why = format!(
            "{}: shares its {} with core {} (level \"{}\")",
            left_out.core, left_out.shares, plan.borrowed_core, plan.level
        );
        line(&mut text, "left out", &why);
    }
    let method = match (&plan.method, &plan.partition) {
        (Method::Cpuset, Some(folder)) => format!("cpuset partition {}", folder.display()),
        _ => "affinity, thread by thread".into(),
    };
    let reason = plan.method_reason.as_deref().map(|reason| format!(": {reason}"));
    line(&mut text, "by", &(method + &reason.unwrap_or_default()));
    if plan.is_applied {
        line(&mut text, "in force", "yes; the list shows later arrivals");
    }
    text
}

fn plan_text(plan: &Plan) -> String {
    let mut text = cores_text(plan);
    for interrupt in &plan.interrupts {
        let wire = if interrupt.is_wire { ", a wire's" } else { "" };
        let (number, names) = (interrupt.interrupt, interrupt.handlers.join(", "));
        let names = if names.is_empty() { "unused" } else { &names };
        let value = format!("{number} ({names}{wire}): {} -> {}", interrupt.was, interrupt.becomes);
        line(&mut text, "interrupt", &value);
    }
    for setting in &plan.settings {
        let value = format!("{}: {} -> {}", setting.setting, setting.was, setting.becomes);
        line(&mut text, "setting", &value);
    }
    let mut ways = BTreeMap::<(&str, &str), Vec<&str>>::new();
    for thread in &plan.threads {
        ways.entry((&thread.was, &thread.becomes)).or_default().push(&thread.name);
    }
    for ((was, becomes), mut names) in ways {
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        let more = if names.len() > NAMES { ", ..." } else { "" };
        names.truncate(NAMES);
        let names = names.join(", ");
        line(&mut text, "threads", &format!("{count}: {was} -> {becomes} ({names}{more})"));
    }
    if plan.bound_threads != 0 {
        let value = format!("{} kernel threads, bound to those cores", plan.bound_threads);
        line(&mut text, "stay", &value);
    }
    for warning in &plan.warnings {
        line(&mut text, "note", warning);
    }
    text
}
