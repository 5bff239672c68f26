//! The kernel engine's plan for a card, as text and data: for `picnic check`.
//!
//! Guarantees: nothing is loaded or changed, and no privilege is needed except to enter a
//! wire's namespace.
//!
//! Source: docs/kernel-engine.md.

use crate::plan::{Action, Plan, Step, WirePlan, is_hybrid, plan};
use crate::run::add_filters;
use picnic_control::error::RunError;
use picnic_control::{EnginePlan, Launch};
use picnic_core::config::CardFile;
use picnic_filter::{Action as FilterAction, Filters};
use picnic_forms::{FlowHash, Handover, KernelForm, Scheduling};
use picnic_machine::topology::Placement;
use picnic_machine::xdp::driver;
use serde::Serialize;

/// Filters that are listed by name.
const NAMED: usize = 8;

#[derive(Serialize)]
struct Description {
    handover: &'static str,
    handover_does: String,
    handover_because: &'static str,
    wires: Vec<WireDescription>,
    functions: Vec<FunctionDescription>,
    interrupt: String,
    changes: Vec<ChangeDescription>,
    /// With `engine = "hybrid"`.
    poll: Option<PollDescription>,
}

#[derive(Serialize)]
struct WireDescription {
    name: String,
    interface: String,
    namespace: Option<String>,
    /// None if it cannot be found.
    driver: Option<String>,
    attaches: &'static str,
    run_by: String,
}

#[derive(Serialize)]
struct FunctionDescription {
    name: String,
    /// None if only the poll engine has it.
    form: Option<String>,
}

/// A change to the machine while the card runs.
#[derive(Serialize)]
struct ChangeDescription {
    what: String,
    costs: String,
}

#[derive(Serialize)]
struct PollDescription {
    /// Filters that send packets to it.
    filters: Vec<String>,
    /// The functions that these packets pass.
    functions: Vec<String>,
    attachment: String,
}

/// Describes the plan for a card.
pub(crate) fn describe(launch: &Launch<'_>) -> Result<EnginePlan, RunError> {
    let (plan, placement) = plan(launch)?;
    let filters = Filters::new(launch.file.host.queues);
    add_filters(launch, &filters)?;
    let description = Description::new(launch.file, &plan, &placement, &filters);
    Ok(EnginePlan {
        lines: description.lines(),
        json: serde_json::to_value(&description).unwrap_or_default(),
        is_whole: !plan.is_hybrid,
    })
}

impl Description {
    fn new(file: &CardFile, plan: &Plan, placement: &Placement, filters: &Filters) -> Self {
        let core = placement.borrowed_core;
        let is_said = file.settings().iter().any(|(path, _)| path == "host.handover");
        let (handover, handover_does) = match plan.handover {
            Handover::Skb => (
                "skb",
                format!(
                    "GRO merges packets on core {core}; a ring of {} of them and a thread for each \
                     target core",
                    plan.ring_size
                ),
            ),
            Handover::Cpumap => (
                "cpumap",
                format!("a ring of {} frames and a thread for each target core", plan.ring_size),
            ),
        };
        let handover_does = match plan.scheduling {
            Scheduling::Normal => handover_does,
            Scheduling::Batch => format!("{handover_does} that waits its turn (SCHED_BATCH)"),
        };
        let handover_because = match (plan.is_hybrid, is_said) {
            (true, _) => "AF_XDP sockets need an XDP program",
            (false, true) => "set by host.handover",
            (false, false) => "the default: target cores handle fewer, longer packets",
        };
        let drivers: Vec<_> = plan
            .wires
            .iter()
            .map(|wire| driver(&wire.interface, wire.namespace.as_deref()))
            .collect();
        let wires = plan.wires.iter().zip(&drivers);
        Description {
            handover,
            handover_does,
            handover_because,
            wires: wires
                .clone()
                .map(|(wire, driver)| WireDescription {
                    name: wire.name.clone(),
                    interface: wire.interface.clone(),
                    namespace: wire.namespace.clone(),
                    driver: driver.clone(),
                    attaches: match plan.handover {
                        Handover::Skb => "tc program (tcx) at ingress",
                        Handover::Cpumap => "XDP program in the driver (native)",
                    },
                    run_by: run_by(plan.handover, driver.as_deref(), core),
                })
                .collect(),
            functions: plan
                .steps
                .iter()
                .map(|step| FunctionDescription { name: step.name.clone(), form: form(step) })
                .collect(),
            interrupt: interrupt(plan),
            changes: wires
                .flat_map(|(wire, driver)| changes(plan.handover, wire, driver.as_deref(), core))
                .collect(),
            poll: is_hybrid(file).then(|| PollDescription {
                filters: filters
                    .list()
                    .into_iter()
                    .filter(|listing| listing.filter.action == FilterAction::Poll)
                    .map(|listing| listing.filter.name)
                    .collect(),
                functions: file.rx.iter().map(|section| section.name().into()).collect(),
                attachment: file.host.section.name().into(),
            }),
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let Description { handover, handover_does, handover_because, .. } = self;
        let mut lines =
            vec![("hand-over", format!("{handover}: {handover_does} ({handover_because})"))];
        for wire in &self.wires {
            let place = wire.namespace.as_ref().map(|name| format!(" in namespace {name}"));
            let driver = wire.driver.as_deref().unwrap_or("driver unknown");
            lines.push((
                "program",
                format!(
                    "{}: {} of {}{} ({driver}), run by {}",
                    wire.name,
                    wire.attaches,
                    wire.interface,
                    place.unwrap_or_default(),
                    wire.run_by
                ),
            ));
        }
        for FunctionDescription { name, form } in &self.functions {
            let form = form.as_deref().unwrap_or("poll engine only");
            lines.push(("function", format!("{name}: {form}")));
        }
        lines.push(("interrupt", self.interrupt.clone()));
        for ChangeDescription { what, costs } in &self.changes {
            lines.push(("change", format!("{what}; cost: {costs}")));
        }
        if let Some(PollDescription { filters, functions, attachment }) = &self.poll {
            let named = filters.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            let more = filters.len().saturating_sub(NAMED);
            let which = match (filters.len(), more) {
                (0, _) => "no packets: no filter has action = \"poll\"".into(),
                (1, _) => format!("packets matched by filter {named}"),
                (_, 0) => format!("packets matched by filters {named}"),
                _ => format!("packets matched by filters {named} and {more} more"),
            };
            let chain = match &functions[..] {
                [] => "no function".into(),
                functions => functions.join(" -> "),
            };
            lines.push(("poll engine", format!("{which}: {chain} -> {attachment}")));
        }
        lines
    }
}

fn run_by(handover: Handover, driver: Option<&str>, core: usize) -> String {
    let threads = format!("its NAPI threads, pinned to core {core}");
    match (driver, handover) {
        (Some("veth"), Handover::Cpumap) => threads,
        (Some("veth"), Handover::Skb) => {
            format!("{threads}, or by the softirq of that core for super-frames from its peer")
        }
        _ => format!("{threads} along with its interrupts"),
    }
}

fn interrupt(plan: &Plan) -> String {
    let which = if plan.is_hybrid { "for packets that stay in the kernel, " } else { "" };
    let once = match plan.handover {
        Handover::Skb => "one per merged packet that finds the target's thread asleep".into(),
        Handover::Cpumap => {
            format!("{which}one per target core and poll of a wire (up to 64 packets)")
        }
    };
    match plan.wire_usecs {
        0 => once,
        usecs => {
            format!("{once}; polls {usecs} µs apart, at most {} without packets", plan.wire_polls)
        }
    }
}

/// The settings of a wire's interface that are switched, and the cost.
fn changes(
    handover: Handover,
    wire: &WirePlan,
    driver: Option<&str>,
    core: usize,
) -> Vec<ChangeDescription> {
    let of = |what: &str, costs: &str| ChangeDescription {
        what: format!("{}: {what}", wire.interface),
        costs: costs.into(),
    };
    let mut changes = Vec::new();
    match handover {
        Handover::Skb => {
            let costs = format!("work on core {core}, less than it saves the target cores");
            changes.push(of("GRO and threaded NAPI on", &costs));
            changes
                .push(of("a relay interface for it", "captures on the wire see each packet twice"));
        }
        Handover::Cpumap => {
            changes.push(of(
                "GRO and threaded NAPI on",
                "none: target cores merge what cpumap hands over, if the kernel can",
            ));
            changes.push(match driver {
                Some("veth") => of(
                    "super-frames from its peer cut up",
                    "bulk TCP reaches 0.2 of a plain veth's rate on two cores (0.9 with skb)",
                ),
                Some("virtio_net") => {
                    of("guest offloads off", "the host cuts super-frames and finishes checksums")
                }
                _ => of(
                    "features that the driver cannot combine with XDP off (LRO)",
                    "target cores handle packets unmerged",
                ),
            });
        }
    }
    changes.push(match (handover, driver) {
        (Handover::Skb, Some("veth")) => {
            let what = format!("receive packet steering to core {core}");
            of(&what, "none: packets that no NAPI thread polls are handled there, too")
        }
        _ => of("receive packet steering off", "none, as the card steers"),
    });
    changes
}

/// The kernel form of a function.
fn form(step: &Step) -> Option<String> {
    let form = match &step.action {
        Action::Object(file) => {
            return Some(format!("XDP program {} of the object file", file.program));
        }
        Action::Elsewhere => return None,
        Action::Form(form) => form,
    };
    Some(match form {
        KernelForm::Next => "leaves every packet as it is".into(),
        KernelForm::Drop => "drops every packet".into(),
        KernelForm::ByWire(_) => "queue by wire".into(),
        KernelForm::ByHash(by_hash) => {
            format!("{}, table of {} entries", hash(&by_hash.hash), by_hash.table.len())
        }
        KernelForm::ByPool(pools) => {
            format!("{} pools by address and VLAN, then {}", pools.queues.len(), hash(&pools.hash))
        }
        KernelForm::Sample { every, queue: Some(queue), .. } => {
            format!("1 packet in {every} to queue {queue}")
        }
        KernelForm::Sample { every, .. } => format!("1 packet in {every} continues"),
        KernelForm::Vlans { .. } => "drops packets of other VLANs".into(),
        KernelForm::Police { per_wire: true, .. } => {
            "drops packets over the rate of each wire".into()
        }
        KernelForm::Police { .. } => "drops packets over the rate".into(),
        KernelForm::ByRules { rules, room } => format!("{} rules, room for {room}", rules.len()),
        KernelForm::Object { .. } | KernelForm::Interface { .. } | KernelForm::Stack(..) => {
            return None;
        }
    })
}

fn hash(hash: &FlowHash) -> &'static str {
    match hash {
        FlowHash::Toeplitz(_) => "Toeplitz",
        FlowHash::Lookup3(_) => "JHash (lookup3)",
        FlowHash::Lookup2(_) => "JHash (lookup2)",
    }
}
